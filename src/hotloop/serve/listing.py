"""A folder of runs -> one line for each, from the heads and tails of its files: no recording is read whole.

Nothing that a file says is trusted, no link is followed, and a run that cannot be read costs its line, not the list.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from signal import Signals
from typing import Any

import numpy as np

from hotloop.core.errors import RecordingError, UsageError
from hotloop.core.frames import (
    HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    decode_frames,
    decode_object,
    decode_segment_header,
)
from hotloop.core.live import is_stale
from hotloop.core.recording import CLOSED_BY_BACKWARD, CLOSED_BY_END, FIELD, OUTCOME_FILE
from hotloop.core.redact import redact_command
from hotloop.core.report import VERDICT_FILE
from hotloop.trace.recording import FILE_SUFFIX, RecordingFile, Rows, RowsAndFacts

MOST_RUNS = 500
"""More runs than this, the newest, are counted and not listed."""
_HEAD_BYTES = 64 << 10
"""Behind a recording's head, for the fact of its process and the rows before its first step."""
_LAST_ROWS = 25
"""Of which the time of a step is the mean."""
_MOST_JSON_BYTES = 1 << 20
_MOST_PROCESSES = 10_000


class State(Enum):
    """Where a run is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    STALE = "stale"
    COMPLETED = "completed"
    FAILED = "failed"
    KILLED = "killed"
    ENDED = "ended"
    """Its process closed the recording; nothing says how the command ended."""
    BROKEN = "unreadable"

    @property
    def is_live(self) -> bool:
        return self in (State.STARTING, State.RUNNING, State.STALE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """A run in the list; None is unknown. ``step_ns`` is its report's mean, or that of its last recorded steps where
    there is no report yet."""

    name: str
    state: State
    detail: str = ""
    command: tuple[str, ...] = ()
    started_wall_s: float | None = None
    steps_count: int | None = None
    step_ns: float | None = None
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lead:
    """The process that speaks for a run."""

    process: Mapping[str, Any]
    is_closed: bool
    last_end_ns: int | None
    steps_count: int | None = None
    step_ns: float | None = None


def find_runs_folder(folder: Path) -> Path:
    """Where the runs of a folder lie: ``.hotloop`` in it, also when there is none yet, or itself where it holds runs.

    Raises UsageError where there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}: name the one in which `hotloop run` was started")
    runs = folder.resolve() / ".hotloop"
    return folder.resolve() if not runs.is_dir() and list_names(folder) else runs.resolve()


def list_names(runs: Path) -> list[str]:
    """The names of the run folders, newest first; links are none."""
    try:
        with os.scandir(runs) as entries:
            found = [(entry.stat().st_mtime_ns, entry.name) for entry in entries if _is_run(entry)]
    except OSError:
        return []
    return [name for _, name in sorted(found, reverse=True)]


def _is_run(entry: os.DirEntry[str]) -> bool:
    try:
        if not entry.is_dir(follow_symlinks=False):
            return False
        return os.path.isfile(os.path.join(entry.path, "run.json")) or os.path.isdir(
            os.path.join(entry.path, "processes")
        )
    except OSError:
        return False


def stamp_files(*folders: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, times and sizes of what lies in run folders: as long as these stay, so does what is drawn of them.

    Raises RecordingError where one of them leads out of its folder.
    """
    found = []
    for place in (place for folder in folders for place in (folder, folder / "processes")):
        try:
            with os.scandir(place) as entries:
                held = [(entry, entry.stat(follow_symlinks=False)) for entry in entries]
        except OSError:
            continue
        for entry, status in held:
            if stat.S_ISLNK(status.st_mode):
                raise RecordingError(f"{entry.name} is a link out of the run's folder and is not followed")
            found.append((entry.path, status.st_mtime_ns, status.st_size))
    return tuple(sorted(found))


class Listing:
    """Reads the list again and again; a run that is over is read once."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._over: dict[str, tuple[tuple[int, ...], RunEntry]] = {}

    def read(self, now_s: float) -> tuple[list[RunEntry], int]:
        """The newest runs, newest first, and how many older ones there are."""
        names = list_names(self.runs)
        entries = [self._read(name, now_s) for name in names[:MOST_RUNS]]
        self._over = {name: self._over[name] for name in names[:MOST_RUNS] if name in self._over}
        entries.sort(key=lambda entry: -(entry.started_wall_s or 0.0))
        return entries, max(0, len(names) - MOST_RUNS)

    def read_one(self, name: str, now_s: float) -> RunEntry | None:
        """None where the folder holds no run of this name (any more)."""
        return self._read(name, now_s) if name in list_names(self.runs) else None

    def _read(self, name: str, now_s: float) -> RunEntry:
        folder = self.runs / name
        stamp = _stamp(folder)
        held = self._over.get(name)
        if held is not None and held[0] == stamp:
            return held[1]
        try:
            entry = read_entry(folder, now_s)
        except (OSError, RecordingError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            return RunEntry(name=name, state=State.BROKEN, detail=f"{reason}"[:300])
        if not entry.state.is_live:
            self._over[name] = stamp, entry
        return entry


def _stamp(folder: Path) -> tuple[int, ...]:
    times = []
    for name in ("run.json", OUTCOME_FILE, VERDICT_FILE, "processes"):
        try:
            times.append((folder / name).lstat().st_mtime_ns)
        except OSError:
            times.append(0)
    return tuple(times)


def read_entry(folder: Path, now_s: float) -> RunEntry:
    """One run. Raises RecordingError or OSError where its recording cannot be read."""
    manifest = _read_object(folder / "run.json")
    outcome = _read_object(folder / OUTCOME_FILE)
    words = manifest.get("command")
    judged = _read_object(folder / VERDICT_FILE)
    steps, mean_ns = _number(judged.get("steps_count")), _number(judged.get("step_mean_ns"))
    # Of a run that is over and judged, the recording has nothing to add.
    lead = None if outcome and steps is not None else _read_lead(folder / "processes")
    silent_s = None
    anchor_s = _number(lead.process.get("anchor_wall_s")) if lead is not None else None
    if lead is not None and lead.last_end_ns is not None and anchor_s is not None:
        silent_s = max(0.0, now_s - anchor_s - lead.last_end_ns * 1e-9)
    if outcome:
        state, detail = _judge_outcome(outcome)
    else:
        state, detail = _judge_live(manifest, lead, silent_s)
    if lead is not None and steps is None:
        steps, mean_ns = lead.steps_count, lead.step_ns
    return RunEntry(
        name=folder.name,
        state=state,
        detail=detail,
        command=redact_command([str(word) for word in words]) if isinstance(words, list) else (),
        started_wall_s=_number(manifest.get("started_wall_s")),
        steps_count=None if steps is None else int(steps),
        step_ns=mean_ns,
        verdict=str(judged.get("verdict", ""))[:300],
    )


def _judge_outcome(outcome: Mapping[str, Any]) -> tuple[State, str]:
    number, code = outcome.get("signal"), outcome.get("exit_code")
    if isinstance(number, int):
        name = Signals(number).name if number in set(Signals) else f"signal {number}"
        return State.KILLED, name + (" (out of memory)" if outcome.get("oom_kills") else "")
    if not isinstance(code, int):
        return State.ENDED, "outcome.json does not say how"
    return (State.COMPLETED, "") if code == 0 else (State.FAILED, f"exit code {code}")


def _judge_live(manifest: Mapping[str, Any], lead: _Lead | None, silent_s: float | None) -> tuple[State, str]:
    """Without an outcome: whether the process lives, and whether it steps."""
    if lead is None:
        alive = _is_alive(socket.gethostname(), manifest.get("pid"))
        return (State.STARTING, "") if alive is not False else (State.KILLED, "it recorded no process")
    host, pid, runner = lead.process.get("host"), lead.process.get("pid"), manifest.get("pid")
    is_gone = lead.is_closed or _is_alive(host, pid) is False
    if is_gone and runner != pid and _is_alive(host, runner):
        return State.RUNNING, "this training has ended, its command has not"
    if is_gone:
        return (State.ENDED, "") if lead.is_closed else (State.KILLED, "its process is gone and recorded no end")
    if silent_s is None:
        return State.STARTING, ""
    if is_stale(silent_s, lead.step_ns):
        return State.STALE, f"no new step for {silent_s:,.0f} s"
    return State.RUNNING, ""


def _is_alive(host: Any, pid: Any) -> bool | None:
    """None where this machine cannot tell."""
    if host != socket.gethostname() or not isinstance(pid, int) or pid <= 0 or not os.path.isdir("/proc/self"):
        return None
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] != ["Z"]  # dead, and nobody asked how it ended


def _read_lead(processes: Path) -> _Lead | None:
    """The process of the lowest rank's newest start; None where no process recorded anything yet."""
    if processes.is_symlink():
        raise RecordingError("its folder of recordings is a link, which is not followed")
    try:
        with os.scandir(processes) as entries:
            names = [entry.name for _, entry in zip(range(_MOST_PROCESSES), entries, strict=False)]
    except FileNotFoundError:
        return None
    for name in sorted((name for name in names if name.endswith(FILE_SUFFIX)), key=_rank_order):
        if _read_bytes(processes / name, 64).strip(b"\0"):  # else its process ended before it recorded anything
            with RecordingFile(processes / name) as file:
                return _read_recording(file)
    return None


def _rank_order(name: str) -> tuple[int, int, str]:
    """host-pid-rank-restart.hlr: the lowest rank first, of its starts the newest."""
    parts = name.partition(".")[0].rsplit("-", 2)
    rank = int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else 1 << 30
    restart = int(parts[2]) if len(parts) == 3 and parts[2].isdecimal() else 0
    return rank, -restart, name


def _read_recording(file: RecordingFile) -> _Lead:
    """From the first facts and rows, and the last rows."""
    head = RowsAndFacts(file.header)
    _add_frames(head, file.read(HEAD_BYTES, _HEAD_BYTES), 0)
    process = next((fact for fact in head.take_facts() if fact["kind"] == "process"), {})
    rows = _last_rows(file)
    # Backwards before an optimizer is seen are no steps; steps of several optimizers cannot be told apart here.
    steps = rows[rows[:, FIELD["closed_by"]] != CLOSED_BY_BACKWARD]
    steps = steps if len(steps) else rows
    last_end_ns = int(rows[-1, FIELD["end_ns"]]) if len(rows) else None
    lead = _Lead(process=process, is_closed=file.status.closed, last_end_ns=last_end_ns)
    if len(np.unique(steps[:, FIELD["optimizer_index"]])) != 1:
        return lead
    before, last = 0, steps[-1]
    if last[FIELD["closed_by"]] != CLOSED_BY_BACKWARD:
        first = head.take_rows()
        before = int(first[first[:, FIELD["closed_by"]] == CLOSED_BY_BACKWARD, FIELD["rows_merged"]].sum())
    total_ns = int((steps[:, FIELD["end_ns"]] - steps[:, FIELD["start_ns"]]).sum())
    return replace(
        lead,
        steps_count=int(last[FIELD["index"]] + last[FIELD["rows_merged"]] - before),
        step_ns=total_ns / int(steps[:, FIELD["rows_merged"]].sum()) if total_ns > 0 else None,
    )


def _last_rows(file: RecordingFile) -> Rows:
    """The last rows of the newest segment that holds any."""
    size = file.header.segment_bytes
    for number in reversed(range(file.segment_count)):
        start = HEAD_BYTES if number == 0 else SEGMENT_HEADER_BYTES
        if number and decode_segment_header(file.read(number * size, SEGMENT_HEADER_BYTES)) is None:
            continue
        collected = RowsAndFacts(file.header)
        _add_frames(collected, file.read(number * size, size), start)
        found = collected.take_rows()
        rows: Rows = found[found[:, FIELD["closed_by"]] != CLOSED_BY_END]
        if len(rows):
            return rows[-_LAST_ROWS:]
    return RowsAndFacts(file.header).take_rows()


def _add_frames(collected: RowsAndFacts, data: bytes, start: int) -> None:
    for frame in decode_frames(data, start, len(data)):
        collected.add(frame)


def _number(value: Any) -> float | None:
    """A finite number of a file that anybody may have written."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e15 else None


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a small file; empty where there is none."""
    try:
        return decode_object(_read_bytes(path, _MOST_JSON_BYTES)) or {}
    except OSError:
        return {}


def _read_bytes(path: Path, length: int) -> bytes:
    """The first bytes of a plain file: a link is refused, and a pipe or a device is not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RecordingError(f"{path.name} is not a plain file")
        return os.read(descriptor, length)
    finally:
        os.close(descriptor)
