"""A run folder that is being written -> LiveRun, again and again; each time only what was appended is read."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotloop.analyze.live import LiveProcess
from hotloop.core.errors import RecordingError
from hotloop.core.live import ENDED, RUNNING, STALE, STALLED, LiveDevice, LiveRank, LiveRun, is_stale
from hotloop.core.recording import OUTCOME_FILE
from hotloop.core.snapshot import STALLED_FILE, STALLS_FOLDER
from hotloop.telemetry.devices import read_newest_devices
from hotloop.trace.recording import RecordingTail, list_recordings, read_json, states_its_end

WINDOW_COUNT = 100
MOST_PROCESSES = 8_192
CLOSE_RANKS = 16
"""So many of the first ranks, and the one that has gone farthest, are looked at in every reading."""
OTHERS_AT_A_TIME = 16
"""Of the other ranks so many in turn. What is told of them is what the look before saw."""


class LiveReader:
    """Follows one run folder. Memory is bounded by ranks times ``window_count``, whatever the run's length.

    ``read`` never raises: what cannot be read is a line in ``notes``. The first reading and that of an ended run look
    at every recording, the others at no more than ``close_count`` + 1 + OTHERS_AT_A_TIME of those that are known.
    How many steps the training will have taken is known where run.json says so (``--steps-total``). ``wall_clock`` is
    seconds since 1970, ``clock`` any seconds that only rise.
    """

    def __init__(
        self,
        folder: Path,
        *,
        window_count: int = WINDOW_COUNT,
        close_count: int = CLOSE_RANKS,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._window_count = window_count
        self._close_count = close_count
        self._wall_clock = wall_clock
        self._clock = clock
        self._processes: dict[Path, _Followed] = {}
        self._names: set[str] = set()
        self._close: set[Path] = set()
        self._waiting: deque[Path] = deque()
        """The others, the one that was looked at longest ago first."""
        self._has_ended = False

    def read(self) -> LiveRun:
        """The run as it is now. A folder that does not exist is a run without ranks."""
        notes: list[str] = []
        manifest, outcome = (read_json(self._folder / name, notes) or {} for name in ("run.json", OUTCOME_FILE))
        try:
            paths = list_recordings(self._folder / "processes", notes, known=self._names)
        except OSError as error:
            paths = []
            notes.append(f"cannot read {self._folder}: {error.strerror}")
        new = [path for path in paths if path not in self._processes][: MOST_PROCESSES - len(self._processes)]
        self._processes |= {path: _Followed(path, self._window_count) for path in new}
        self._names |= {path.name for path in new}
        has_outcome = states_its_end(outcome)
        looked = list(self._processes) if has_outcome and not self._has_ended else [*new, *self._choose()]
        self._has_ended = has_outcome
        now_s, now_wall_s = self._clock(), self._wall_clock()
        for path in looked:
            self._processes[path].read(now_s, now_wall_s, notes)
        newest = _newest_of_each_rank(self._processes)
        self._keep_close(newest)
        ranks = [rank for _, rank in newest]
        close_ages_s = [rank.age_s for path, rank in newest if path in self._close and rank.age_s is not None]
        age_s = min(close_ages_s, default=None)
        devices = read_newest_devices(self._folder)
        return LiveRun(
            name=self._folder.name,
            command=_read_command(manifest),
            started_wall_s=_number(manifest.get("started_wall_s")),
            state=ENDED if has_outcome else self._find_state(ranks, age_s),
            exit_code=outcome["exit_code"] if has_outcome else None,
            age_s=age_s,
            ranks=_add_use(ranks, devices),
            devices=devices,
            steps_total=_count(manifest.get("steps_total")),
            notes=tuple(notes),
        )

    def _find_state(self, ranks: list[LiveRank], age_s: float | None) -> str:
        """Of a run whose command has not ended."""
        if age_s is None:
            return RUNNING
        steps_ns = [rank.step_mean_ns for rank in ranks if rank.step_mean_ns is not None]
        if not is_stale(age_s, max(steps_ns, default=0)):
            return RUNNING
        if all(rank.is_closed for rank in ranks):
            return ENDED
        return STALLED if (self._folder / STALLS_FOLDER / STALLED_FILE).exists() else STALE

    def _choose(self) -> list[Path]:
        """What this reading looks at, besides new recordings."""
        others = [self._waiting.popleft() for _ in range(min(OTHERS_AT_A_TIME, len(self._waiting)))]
        self._waiting.extend(others)
        return [*self._close, *others]

    def _keep_close(self, newest: list[tuple[Path, LiveRank]]) -> None:
        if len(self._processes) <= self._close_count + OTHERS_AT_A_TIME:
            self._close = set(self._processes)
            return
        lead = max(newest, key=lambda one: one[1].steps_count, default=None)
        close = {path for path, _ in [*newest[: self._close_count], *([lead] if lead else [])]}
        if close != self._close or len(close) + len(self._waiting) != len(self._processes):
            known = {*self._waiting, *close}
            kept = [path for path in self._waiting if path not in close]
            self._waiting = deque([*kept, *(path for path in self._processes if path not in known)])
            self._close = close


class _Followed:
    """One recording: its tail, what is kept of it, and when it last grew."""

    def __init__(self, path: Path, window_count: int) -> None:
        self._tail = RecordingTail(path)
        self._process = LiveProcess(window_count)
        self._grew_s: float | None = None
        self.rank: LiveRank | None = None
        """As the newest ``read`` saw it; None before its first row."""

    def read(self, now_s: float, now_wall_s: float, notes: list[str]) -> None:
        before_ns = self._process.end_ns
        try:
            for piece in self._tail.read():
                self._process.add(piece.rows, piece.facts)
        except RecordingError as error:
            notes.append(str(error))
        end_ns = self._process.end_ns
        if before_ns is not None and end_ns != before_ns:
            self._grew_s = now_s
        anchor_wall_s = self._process.anchor_wall_s
        if self._grew_s is not None:  # our own clock: that of another machine may be wrong
            age_s = now_s - self._grew_s
        elif anchor_wall_s is not None and end_ns is not None:
            age_s = max(0.0, now_wall_s - anchor_wall_s - end_ns * 1e-9)
        else:
            age_s = None
        self.rank = self._process.describe(age_s=age_s, is_closed=self._tail.is_closed)


def _newest_of_each_rank(processes: Mapping[Path, _Followed]) -> list[tuple[Path, LiveRank]]:
    """Of several processes of one rank (restarts, one training after another) the one that wrote last."""
    newest: dict[tuple[str, int], tuple[Path, LiveRank]] = {}
    for path, followed in processes.items():
        one = followed.rank
        if one is None:
            continue
        key = (f"{one.host} {one.pid}", -1) if one.rank is None else ("", one.rank)
        known = newest.get(key)
        if known is None or _recency(one) >= _recency(known[1]):
            newest[key] = path, one
    return sorted(newest.values(), key=lambda item: _place(item[1]))


def _place(one: LiveRank) -> tuple[int, str, int]:
    return -1 if one.rank is None else one.rank, one.host, one.pid


def _recency(rank: LiveRank) -> tuple[int, float]:
    return rank.restart, float("-inf") if rank.age_s is None else -rank.age_s


def _add_use(ranks: list[LiveRank], devices: tuple[LiveDevice, ...]) -> tuple[LiveRank, ...]:
    """Each rank with the utilization of its accelerator: that of its local rank, where all are on one machine."""
    if not devices or len({one.host for one in ranks}) != 1:
        return tuple(ranks)
    return tuple(replace(one, utilization_ratio=_find_use(one, devices)) for one in ranks)


def _find_use(rank: LiveRank, devices: tuple[LiveDevice, ...]) -> float | None:
    place = 0 if rank.local_rank is None and len(devices) == 1 else rank.local_rank
    if place is None or place >= len(devices) or not rank.device_allocated_bytes:
        return None
    return devices[place].utilization_ratio


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 60 else None


def _read_command(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    words = manifest.get("command")
    return tuple(word[:4096] for word in words[:256] if isinstance(word, str)) if isinstance(words, list) else ()


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18
    return float(value) if is_number else None
