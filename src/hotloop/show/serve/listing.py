"""A folder of runs -> one line for each.

No link is followed, and a run that cannot be read costs its line, not the list.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from signal import Signals
from typing import Any, Protocol

from hotloop.core.decode import read_number
from hotloop.core.errors import RecordingError, UsageError
from hotloop.core.live import STALE, STALLED, LiveRank, LiveRun
from hotloop.core.recording import OUTCOME_FILE
from hotloop.core.redact import redact_command
from hotloop.core.report import VERDICT_FILE
from hotloop.evidence.trace.recording import read_json

MOST_RUNS = 500
"""More runs than this, the newest, are counted and not listed."""
Stamp = tuple[tuple[str, int, int], ...]


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


class LiveFolder(Protocol):
    """Reads what the recordings of a run gained since the time before."""

    def read(self) -> LiveRun: ...


def find_runs_folder(folder: Path) -> Path:
    """Where the runs of a folder are: ``.hotloop`` in it, even if there is none yet, or the folder if it holds runs.

    Raises UsageError where there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}: give the folder in which `hotloop run` was started")
    runs = folder.resolve() / ".hotloop"
    return folder.resolve() if not runs.is_dir() and list_names(folder) else runs.resolve()


def list_names(runs: Path) -> list[str]:
    """The names of the run folders, newest first, without links."""
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


def stamp_files(*folders: Path) -> Stamp:
    """Names, times and sizes of the files in run folders: while these stay the same, so does what is drawn of them.

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
                raise RecordingError(f"{entry.name} is a link to outside the run's folder and is not followed")
            found.append((entry.path, status.st_mtime_ns, status.st_size))
    return tuple(sorted(found))


class Listing:
    """Reads the list again and again; a run that is over is read once. ``make_reader`` follows a run's recordings."""

    def __init__(self, runs: Path, make_reader: Callable[[Path], LiveFolder]) -> None:
        self.runs = runs
        self._make_reader = make_reader
        self._over: dict[str, tuple[Stamp, RunEntry]] = {}
        self._readers: dict[str, LiveFolder] = {}

    def read(self) -> tuple[list[RunEntry], int]:
        """The newest runs, newest first, and how many older ones there are."""
        names = list_names(self.runs)
        entries = [self._read(name) for name in names[:MOST_RUNS]]
        self._over = {name: self._over[name] for name in names[:MOST_RUNS] if name in self._over}
        entries.sort(key=lambda entry: -(entry.started_wall_s or 0.0))
        return entries, max(0, len(names) - MOST_RUNS)

    def read_one(self, name: str) -> RunEntry | None:
        """None where the folder holds no run of this name (any more)."""
        return self._read(name) if name in list_names(self.runs) else None

    def _read(self, name: str) -> RunEntry:
        folder = self.runs / name
        try:
            stamp = stamp_files(folder)
            held = self._over.get(name)
            if held is not None and held[0] == stamp:
                return held[1]
            reader = self._readers.pop(name, None) or self._make_reader(folder)
            entry = read_entry(folder, reader)
        except (OSError, RecordingError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            return RunEntry(name=name, state=State.BROKEN, detail=f"{reason}"[:300])
        if entry.state.is_live:
            self._readers[name] = reader
        else:
            self._over[name] = stamp, entry
        return entry


def read_entry(folder: Path, reader: LiveFolder) -> RunEntry:
    """One run. Raises RecordingError or OSError where none of its recordings can be read."""
    manifest, outcome, judged = (
        read_json(folder / name, []) or {} for name in ("run.json", OUTCOME_FILE, VERDICT_FILE)
    )
    words = manifest.get("command")
    steps, mean_ns = read_number(judged.get("steps_count")), read_number(judged.get("step_mean_ns"))
    run = lead = None
    if not outcome or steps is None:  # of a run that is over and judged, its recordings have nothing to add
        run = reader.read()
        lead = run.lead
        if lead is None and run.notes:
            raise RecordingError(run.notes[0])
    if outcome:
        state, detail = _judge_outcome(outcome)
    else:
        state, detail = _judge_live(manifest, run, lead)
    if lead is not None and steps is None:
        steps, mean_ns = lead.steps_count, lead.step_mean_ns
    return RunEntry(
        name=folder.name,
        state=state,
        detail=detail,
        command=redact_command([str(word) for word in words]) if isinstance(words, list) else (),
        started_wall_s=read_number(manifest.get("started_wall_s")),
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


def _judge_live(manifest: Mapping[str, Any], run: LiveRun | None, lead: LiveRank | None) -> tuple[State, str]:
    """Without an outcome: whether the process lives, and whether it steps."""
    runner = manifest.get("pid")
    if run is None or lead is None:
        alive = _is_alive(socket.gethostname(), runner)
        return (State.STARTING, "") if alive is not False else (State.KILLED, "no process was recorded")
    is_gone = lead.is_closed or _is_alive(lead.host, lead.pid) is False
    if is_gone and runner != lead.pid and _is_alive(lead.host, runner):
        return State.RUNNING, "training has ended, but the command has not"
    if is_gone:
        return (State.ENDED, "") if lead.is_closed else (State.KILLED, "its process is gone, and no end was recorded")
    if run.state in (STALE, STALLED):
        return State.STALE, f"no new step for {run.age_s or 0.0:,.0f} s"
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
