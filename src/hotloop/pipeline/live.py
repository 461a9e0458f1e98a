"""A run folder that is being written -> LiveRun, again and again; each time only what was appended is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotloop.core.decode import read_number
from hotloop.core.errors import RecordingError
from hotloop.core.live import ENDED, RUNNING, STALE, STALLED, LiveDevice, LiveRank, LiveRun, is_stale
from hotloop.core.recording import OUTCOME_FILE
from hotloop.core.snapshot import STALLED_FILE, STALLS_FOLDER
from hotloop.evidence.analyze.live import LiveProcess
from hotloop.evidence.telemetry.devices import read_newest_devices
from hotloop.evidence.trace.recording import RecordingTail, list_recordings, read_json, states_its_end

WINDOW_COUNT = 100
MOST_PROCESSES = 8_192


class LiveReader:
    """Follows one run folder. Memory is bounded by ranks times ``window_count``, whatever the run's length.

    ``read`` never raises: what cannot be read is a line in ``notes``. How many steps the training will have taken is
    known where run.json says so (``--steps-total``). ``wall_clock`` is seconds since 1970, ``clock`` any seconds that
    only rise.
    """

    def __init__(
        self,
        folder: Path,
        *,
        window_count: int = WINDOW_COUNT,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._window_count = window_count
        self._wall_clock = wall_clock
        self._clock = clock
        self._processes: dict[Path, _Followed] = {}
        self._names: set[str] = set()

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
        now_s, now_wall_s = self._clock(), self._wall_clock()
        for process in self._processes.values():
            process.read(now_s, now_wall_s, notes)
        ranks = _newest_of_each_rank(process.rank for process in self._processes.values() if process.rank is not None)
        age_s = min((rank.age_s for rank in ranks if rank.age_s is not None), default=None)
        devices = read_newest_devices(self._folder)
        return LiveRun(
            name=self._folder.name,
            command=_read_command(manifest),
            started_wall_s=read_number(manifest.get("started_wall_s")),
            state=ENDED if has_outcome else self._find_state(ranks, age_s),
            exit_code=outcome["exit_code"] if has_outcome else None,
            age_s=age_s,
            ranks=_add_use(ranks, devices),
            devices=devices,
            steps_total=_count(manifest.get("steps_total")),
            notes=tuple(notes),
        )

    def _find_state(self, ranks: list[LiveRank], age_s: float | None) -> str:
        """The state of a run whose command has not ended."""
        if age_s is None:
            return RUNNING
        steps_ns = [rank.step_mean_ns for rank in ranks if rank.step_mean_ns is not None]
        if not is_stale(age_s, max(steps_ns, default=0)):
            return RUNNING
        if all(rank.is_closed for rank in ranks):
            return ENDED
        return STALLED if (self._folder / STALLS_FOLDER / STALLED_FILE).exists() else STALE


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
            self._process.add(*self._tail.read())
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


def _newest_of_each_rank(ranks: Iterable[LiveRank]) -> list[LiveRank]:
    """Among several processes of one rank (restarts, one training after another), the last to write."""
    newest: dict[tuple[str, int], LiveRank] = {}
    for rank in ranks:
        key = (f"{rank.host} {rank.pid}", -1) if rank.rank is None else ("", rank.rank)
        if key not in newest or _recency(rank) >= _recency(newest[key]):
            newest[key] = rank
    return sorted(newest.values(), key=lambda rank: (-1 if rank.rank is None else rank.rank, rank.host, rank.pid))


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
