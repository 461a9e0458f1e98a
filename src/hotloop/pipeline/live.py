"""A run folder that is being written -> LiveRun, again and again; each time only what was appended is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotloop.analyze.live import LiveProcess
from hotloop.core.errors import RecordingError
from hotloop.core.live import ENDED, RUNNING, STALE, LiveDevice, LiveRank, LiveRun
from hotloop.core.outcome_file import OUTCOME_FILE
from hotloop.telemetry.devices import read_newest_devices
from hotloop.trace.recording import list_recordings, read_json, states_its_end
from hotloop.trace.tail import RecordingTail

WINDOW_COUNT = 100
STALE_AFTER_S = 15.0
STALE_STEPS = 10
"""A run without a new row for STALE_AFTER_S, and for as long as so many of its steps take, is stale."""
MOST_PROCESSES = 8_192


class LiveReader:
    """Follows one run folder. Memory is bounded by ranks times ``window_count``, whatever the run's length.

    ``read`` never raises: what cannot be read is a line in ``notes``. ``steps_total`` is how many steps the training
    will have taken, where somebody knows; without it there is no ETA. ``wall_clock`` is seconds since 1970, ``clock``
    any seconds that only rise.
    """

    def __init__(
        self,
        folder: Path,
        *,
        window_count: int = WINDOW_COUNT,
        steps_total: int | None = None,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._window_count = window_count
        self._steps_total = steps_total
        self._wall_clock = wall_clock
        self._clock = clock
        self._processes: dict[Path, _Followed] = {}

    def read(self) -> LiveRun:
        """The run as it is now. A folder that does not exist is a run without ranks."""
        notes: list[str] = []
        manifest, outcome = (read_json(self._folder / name, notes) or {} for name in ("run.json", OUTCOME_FILE))
        try:
            paths = list_recordings(self._folder / "processes", notes)
        except OSError as error:
            paths = []
            notes.append(f"cannot read {self._folder}: {error.strerror}")
        for path in paths:
            if path not in self._processes and len(self._processes) < MOST_PROCESSES:
                self._processes[path] = _Followed(path, self._window_count)
        devices = read_newest_devices(self._folder)
        now_s, now_wall_s = self._clock(), self._wall_clock()
        ranks = []
        for followed in self._processes.values():
            rank = followed.read(now_s, now_wall_s, notes)
            if rank is not None:
                ranks.append(rank)
        newest = _newest_of_each_rank(ranks)
        ages_s = [rank.age_s for rank in newest if rank.age_s is not None]
        age_s = min(ages_s, default=None)
        has_outcome = states_its_end(outcome)
        return LiveRun(
            name=self._folder.name,
            command=_read_command(manifest),
            started_wall_s=_number(manifest.get("started_wall_s")),
            state=ENDED if has_outcome else _find_state(newest, age_s),
            exit_code=outcome["exit_code"] if has_outcome else None,
            age_s=age_s,
            ranks=tuple(replace(rank, utilization_ratio=_find_use(rank, newest, devices)) for rank in newest),
            devices=devices,
            steps_total=self._steps_total,
            notes=tuple(notes),
        )


class _Followed:
    """One recording: its tail, what is kept of it, and when it last grew."""

    def __init__(self, path: Path, window_count: int) -> None:
        self._tail = RecordingTail(path)
        self._process = LiveProcess(window_count)
        self._grew_s: float | None = None

    def read(self, now_s: float, now_wall_s: float, notes: list[str]) -> LiveRank | None:
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
        return self._process.describe(age_s=age_s, is_closed=self._tail.is_closed)


def _newest_of_each_rank(ranks: list[LiveRank]) -> list[LiveRank]:
    """Of several processes of one rank (restarts, one training after another) the one that wrote last."""
    newest: dict[tuple[str, int], LiveRank] = {}
    for one in ranks:
        key = (f"{one.host} {one.pid}", -1) if one.rank is None else ("", one.rank)
        known = newest.get(key)
        if known is None or _recency(one) >= _recency(known):
            newest[key] = one
    return sorted(newest.values(), key=lambda one: (-1 if one.rank is None else one.rank, one.host, one.pid))


def _recency(rank: LiveRank) -> tuple[int, float]:
    return rank.restart, float("-inf") if rank.age_s is None else -rank.age_s


def _find_state(ranks: list[LiveRank], age_s: float | None) -> str:
    """Of a run whose command has not ended."""
    if age_s is None:
        return RUNNING
    steps_ns = [rank.step_mean_ns for rank in ranks if rank.step_mean_ns is not None]
    if age_s <= max(STALE_AFTER_S, STALE_STEPS * max(steps_ns, default=0) * 1e-9):
        return RUNNING
    return ENDED if all(rank.is_closed for rank in ranks) else STALE


def _find_use(rank: LiveRank, ranks: list[LiveRank], devices: tuple[LiveDevice, ...]) -> float | None:
    """Utilisation of a rank's accelerator: that of its local rank, where all ranks are on one machine."""
    place = 0 if rank.local_rank is None and len(devices) == 1 else rank.local_rank
    one_host = len({one.host for one in ranks}) == 1
    if place is None or not one_host or place >= len(devices) or not rank.device_allocated_bytes:
        return None
    return devices[place].utilization_ratio


def _read_command(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    words = manifest.get("command")
    return tuple(word[:4096] for word in words[:256] if isinstance(word, str)) if isinstance(words, list) else ()


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18
    return float(value) if is_number else None
