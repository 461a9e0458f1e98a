"""A run folder -> RunRecording: rows as columns, facts as dicts, and what is missing, at any moment of a run's life.

Works while the files are being written and after their writers were killed. Nothing in a file is trusted: its size is
bounded, damage is stepped over and counted, and the only error is RecordingError with one line.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import RecordingError
from hotloop.core.frames import (
    HEADER_BYTES,
    KIND_END,
    KIND_FACT,
    KIND_ROW,
    LAST_WINS_KINDS,
    Frame,
    check_header,
    decode_frames,
    decode_object,
    fact_key,
)
from hotloop.core.recording import CLOSED_BY_END, DEVICE_TIME_FIELDS, FIELD, STEP_FIELDS

RUNS_FOLDER = ".hotloop"
FILE_SUFFIX = ".hlr"

_MAX_JSON_BYTES = 16 << 20
_MAX_FILE_BYTES = 256 << 20  # a year of steps takes less: old rows are merged, facts thinned out
_MAX_COUNT = 1 << 60  # a row index beyond this is damage
_LAST_BYTES = 1 << 20
_ROW_BYTES = 8 * len(STEP_FIELDS)
_INDEX = struct.Struct("<q")

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecording:
    """One training process. ``rows`` is n x len(STEP_FIELDS) in the order of STEP_FIELDS, sorted by index.

    ``process`` is the process fact, empty if it was lost. ``facts`` are in the order of writing; of last-wins kinds,
    only the newest. ``closed`` is False while the process runs, and forever if it was killed.
    """

    path: Path
    process: dict[str, Any]
    rows: Rows
    facts: tuple[dict[str, Any], ...]
    lost_rows: int
    closed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecording:
    """A run folder. ``manifest``, ``outcome`` and ``probe`` are None if their file is missing or unreadable;
    ``outcome_lost`` is True if there is an outcome.json that does not say how the command ended.

    ``health`` says in one line each what could not be read or was lost.
    """

    manifest: dict[str, Any] | None
    outcome: dict[str, Any] | None
    probe: dict[str, Any] | None
    processes: tuple[ProcessRecording, ...]
    health: tuple[str, ...]
    outcome_lost: bool = False


def find_run(name_or_path: str, root: Path) -> Path:
    """The folder of a run: ``last`` for the newest one in which a training was seen (without any, the newest), a
    folder, or a name under ``root``/.hotloop."""
    runs = root / RUNS_FOLDER
    if name_or_path == "last":
        found = sorted(_list_runs(runs), key=_started, reverse=True)
        if not found:
            raise RecordingError(f"no run under {runs}: record one with `hotloop run -- COMMAND`")
        return next((run for run in found if _saw_training(run)), found[0])
    for candidate in (root / name_or_path, runs / name_or_path):
        if _is_run(candidate):
            return candidate
    if (root / name_or_path).is_dir():
        raise RecordingError(f"{name_or_path} contains no recording")
    known = ", ".join(sorted(run.name for run in _list_runs(runs))[-10:]) or "none"
    raise RecordingError(f"no run {name_or_path!r}; known under {runs}: {known}")


def find_newer(run: Path) -> Path | None:
    """The newest run in the same place that began after ``run``; None if ``run`` is the newest."""
    newest = max([run, *_list_runs(run.parent)], key=_started)
    return None if newest == run else newest


def read_run(folder: Path) -> RunRecording:
    """Everything in a run folder, as far as it can be read.

    Raises RecordingError if there is no recording at all, or if no process's file can be read.
    """
    health: list[str] = []
    try:
        if not folder.is_dir():
            raise RecordingError(f"no run at {folder}")
        paths = list_recordings(folder / "processes", health)
    except OSError as error:
        raise RecordingError(f"cannot read {folder}: {error.strerror}") from None
    manifest, outcome, probe = (read_json(folder / name, health) for name in ("run.json", "outcome.json", "probe.json"))
    outcome_lost = outcome is None and (folder / "outcome.json").exists()
    if outcome is not None and not states_its_end(outcome):
        health.append("outcome.json is damaged: it has neither an exit code nor a signal")
        outcome, outcome_lost = None, True
    processes: list[ProcessRecording] = []
    refused: list[RecordingError] = []
    for path in paths:
        try:
            if _never_began(path):
                health.append(f"{path.name} is empty: its process ended before it could record anything")
                continue
            process = read_process(path)
        except RecordingError as error:
            refused.append(error)
            health.append(str(error))
        else:
            processes.append(process)
            health.extend(_describe_losses(process))
    if refused and not processes:
        raise refused[0]
    if manifest is None and not processes:
        raise RecordingError(f"{folder} contains no recording")
    return RunRecording(
        manifest=manifest,
        outcome=outcome,
        probe=probe,
        processes=tuple(processes),
        health=tuple(health),
        outcome_lost=outcome_lost,
    )


def read_process(path: Path) -> ProcessRecording:
    """One process's file. Raises RecordingError if it is foreign, of another version, or unreadable."""
    collected = RowsAndFacts(decode_frames(_open_recording(path)[0]))
    facts = collected.facts
    rows = fill_device_times(collected.rows, facts)
    process: dict[str, Any] = next((fact for fact in reversed(facts) if fact.get("kind") == "process"), {})
    return ProcessRecording(
        path=path, process=process, rows=rows, facts=facts, lost_rows=_count_lost(rows), closed=collected.is_closed
    )


def _open_recording(path: Path, begin: int = HEADER_BYTES) -> tuple[bytes, os.stat_result]:
    """What follows ``begin`` in a file, and what the system says about it. A negative ``begin`` counts from the end."""
    try:
        with path.open("rb") as file:
            check_header(file.read(HEADER_BYTES), str(path))
            stat = os.fstat(file.fileno())
            if stat.st_size > _MAX_FILE_BYTES:
                raise RecordingError(f"{path} has {stat.st_size} bytes; a recording has at most {_MAX_FILE_BYTES}")
            file.seek(begin if begin >= 0 else max(HEADER_BYTES, stat.st_size + begin))
            return file.read(), stat
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from None


def fill_device_times(rows: Rows, facts: Iterable[Mapping[str, Any]]) -> Rows:
    """``rows`` (sorted by index) with the device's times of the phases, which facts report some rows later.

    Times without a fact stay UNKNOWN, and so does a block of rows: its sum would lack the rows that were not timed.
    """
    timed = [f for f in facts if f.get("kind") == "device_times" and _is_count(f.get("row"))]
    if not timed or not len(rows):
        return rows
    filled: Rows = rows.copy()
    index = filled[:, FIELD["index"]]
    places = np.searchsorted(index, np.array([f["row"] for f in timed], dtype=np.int64))
    for fact, place in zip(timed, places, strict=True):
        if place == len(filled) or index[place] != fact["row"] or filled[place, FIELD["rows_merged"]] != 1:
            continue
        for key, name in DEVICE_TIME_FIELDS.items():
            if _is_count(fact.get(key)):
                filled[place, FIELD[name]] = fact[key]
    return filled


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_COUNT


def count_rows(path: Path, after_row: int) -> int:
    """Rows in a recording, including lost ones before the last; ``after_row`` if it has none yet.

    Cheap, for following a running training. Raises RecordingError if it cannot be read.
    """
    for begin in (-_LAST_BYTES, HEADER_BYTES):
        rows = RowsAndFacts(decode_frames(_open_recording(path, begin)[0])).rows
        if len(rows):
            return int(rows[-1, FIELD["index"]] + rows[-1, FIELD["rows_merged"]])
    return after_row


class RecordingTail:
    """Reads one process's file again and again, each time only what was appended since the last time.

    A file that was replaced by another one is read from its start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._resume = HEADER_BYTES
        self.is_closed = False
        """Whether the process ended its recording itself, as of the last ``read``."""

    def read(self) -> tuple[Rows, tuple[dict[str, Any], ...]]:
        """The new rows, sorted by index, and the new facts. Raises RecordingError if the file is foreign or gone."""
        data, stat = _open_recording(self._path, self._resume)
        if (stat.st_dev, stat.st_ino) != self._identity or stat.st_size < self._resume:
            self._identity, self._resume, self.is_closed = (stat.st_dev, stat.st_ino), HEADER_BYTES, False
            data, _ = _open_recording(self._path)
        frames = list(decode_frames(data))
        self._resume += frames[-1].end if frames else 0
        collected = RowsAndFacts(frames)
        self.is_closed |= collected.is_closed
        return collected.rows, collected.facts


class RowsAndFacts:
    """Frames in the order of writing -> every row, and the newest version of every fact."""

    def __init__(self, frames: Iterable[Frame]) -> None:
        payloads: dict[int, bytes] = {}
        newest: dict[object, dict[str, Any]] = {}
        self.is_closed = False
        for number, frame in enumerate(frames):
            if frame.kind == KIND_ROW and len(frame.payload) == _ROW_BYTES:
                payloads[_INDEX.unpack_from(frame.payload, 8 * FIELD["index"])[0]] = frame.payload
            elif frame.kind == KIND_FACT and (fact := decode_object(frame.payload)) is not None:
                key: object = number
                # A health line with an id replaces the previous one, like the last-wins kinds.
                if fact.get("kind") in LAST_WINS_KINDS or (fact.get("kind") == "health" and "id" in fact):
                    key = fact_key(fact)
                    newest.pop(key, None)
                newest[key] = fact
            self.is_closed |= frame.kind == KIND_END
        self.facts = tuple(newest.values())
        """In the order of writing."""
        joined = b"".join(payload for _, payload in sorted(payloads.items()))
        rows: Rows = np.frombuffer(joined, dtype="<i8").reshape(-1, len(STEP_FIELDS)).astype(np.int64)
        index, merged = rows[:, FIELD["index"]], rows[:, FIELD["rows_merged"]]
        self.rows = rows[(index >= 0) & (index < _MAX_COUNT) & (merged > 0) & (merged < _MAX_COUNT)]
        """Sorted by index."""


def _count_lost(rows: Rows) -> int:
    """Rows missing before and between those that are there."""
    start = rows[:, FIELD["index"]]
    end = np.maximum.accumulate(start + rows[:, FIELD["rows_merged"]])
    return int(np.maximum(start - np.append(0, end[:-1]), 0).sum())


def _describe_losses(process: ProcessRecording) -> list[str]:
    """One line if rows are missing, unless the writer reports it itself."""
    reported = any(fact.get("kind") == "health" and fact.get("id") == "recording" for fact in process.facts)
    if reported or not process.lost_rows:
        return []
    return [f"{process.path.name} lacks {process.lost_rows} row{'s' if process.lost_rows > 1 else ''}"]


def _never_began(path: Path) -> bool:
    """Whether the writer was killed before it wrote the first bytes of its header."""
    try:
        with path.open("rb") as file:
            return not any(file.read(64))
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from None


def list_recordings(folder: Path, health: list[str], *, known: Container[str] = ()) -> list[Path]:
    """The recordings of a run. Names that are ``known`` are left out."""
    if not folder.is_dir():
        return []
    paths = [folder / name for name in sorted(os.listdir(folder)) if name.endswith(FILE_SUFFIX) and name not in known]
    pipes = [path for path in paths if path.is_fifo()]  # reading one would wait forever
    health += [f"{path.name} is a pipe, not a recording, and was left out" for path in pipes]
    return [path for path in paths if path not in pipes]


def read_json(path: Path, health: list[str]) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_JSON_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        health.append(f"cannot read {path.name}: {error.strerror}")
        return None
    value = decode_object(text) if len(text) <= _MAX_JSON_BYTES else None
    if value is None:
        health.append(f"{path.name} is damaged: it contains no JSON object")
    return value


def states_its_end(outcome: dict[str, Any]) -> bool:
    """Whether it has one whole number: the exit code or the signal, and null for the other."""
    given = [outcome[name] for name in ("exit_code", "signal") if outcome.get(name) is not None]
    return len(given) == 1 and type(given[0]) is int


def _is_run(folder: Path) -> bool:
    try:
        return (folder / "run.json").is_file() or (folder / "processes").is_dir()
    except OSError:  # a folder that may not be read
        return False


def _list_runs(runs: Path) -> list[Path]:
    try:
        return [entry for entry in runs.iterdir() if _is_run(entry)]
    except OSError:
        return []


def _saw_training(run: Path) -> bool:
    """Whether a process of the run completed a step, or cannot be read, which the reader then reports."""
    unread: list[str] = []
    try:
        return any(map(_completed_step, list_recordings(run / "processes", unread))) or bool(unread)
    except (OSError, RecordingError):
        return True


def _completed_step(path: Path) -> bool:
    return not _never_began(path) and bool((read_process(path).rows[:, FIELD["closed_by"]] != CLOSED_BY_END).any())


def _started(run: Path) -> tuple[float, str]:
    """When a run began, for finding the newest: from its manifest, else when that file was written."""
    for name in ("run.json", "processes", "."):
        try:
            modified_s = (run / name).stat().st_mtime
        except OSError:
            continue
        manifest = read_json(run / "run.json", [])
        started = (manifest or {}).get("started_wall_s")
        return (float(started) if isinstance(started, (int, float)) else modified_s), run.name
    return 0.0, run.name


def move_places(run: RunRecording, old: Path, new: Path) -> RunRecording:
    """The run with every path below ``old`` as one below ``new``."""

    def move(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(str(old), str(new))
        if isinstance(value, dict):
            return {key: move(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(move(one) for one in value)
        return value

    processes = tuple(replace(p, process=move(p.process), facts=move(p.facts)) for p in run.processes)
    return replace(run, processes=processes)
