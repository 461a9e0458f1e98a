"""A run folder -> RunRecording: rows as columns, facts as dicts, and what is missing, at any moment of a run's life.

Works while the files are being written and after their writers were killed. Nothing in a file is trusted: memory and
time are bounded, damage is stepped over and counted, and the only error is RecordingError with one line.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import RecordingError
from hotloop.core.frames import (
    HEAD_BYTES,
    KIND_FACT,
    KIND_ROW,
    LAST_WINS_KINDS,
    SEGMENT_HEADER_BYTES,
    STATUS_END,
    FileHeader,
    Frame,
    Status,
    decode_frames,
    decode_header,
    decode_object,
    decode_status,
    fact_key,
    frame_span_bytes,
)
from hotloop.core.recording import CLOSED_BY_END, DEVICE_TIME_FIELDS, FIELD, STEP_FIELDS, UNKNOWN

RUNS_FOLDER = ".hotloop"
FILE_SUFFIX = ".hlr"

_MAX_FILE_BYTES = 2 << 30
_MAX_ROWS = 400_000  # a run of 10^13 steps has fewer: old rows are merged
_MAX_FACTS = 500_000
_MAX_FACTS_BYTES = 64 << 20
_MAX_JSON_BYTES = 16 << 20
_MAX_COUNT = 1 << 60  # a row index beyond this is damage
_MOST_BACK = 32  # segments after the last row: facts alone fill no more
_INT64 = struct.Struct("<q")

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecording:
    """One training process. ``rows`` is n x len(STEP_FIELDS) in the order of STEP_FIELDS, sorted by index.

    ``process`` is the process fact, empty if it was lost. ``facts`` are in the order of writing; of last-wins kinds,
    only the newest. ``closed`` is False while the process runs, and forever if it was killed. ``trouble`` is the
    problem that the writer last reported, else empty.
    """

    path: Path
    process: dict[str, Any]
    rows: Rows
    facts: tuple[dict[str, Any], ...]
    lost_rows: int
    lost_facts: int
    closed: bool
    trouble: str


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
    """One process's file. Raises RecordingError if it is foreign, too new, damaged at its head, or unreadable."""
    with RecordingFile(path) as file:
        collected = RowsAndFacts(file.header)
        for frame in file.read_frames():
            collected.add(frame)
        status = file.status  # read before the rows, so rows that were written meanwhile cannot look lost
    facts = collected.take_facts()
    rows = fill_device_times(collected.take_rows(), facts)
    process: dict[str, Any] = next((fact for fact in reversed(facts) if fact.get("kind") == "process"), {})
    return ProcessRecording(
        path=path,
        process=process,
        rows=rows,
        facts=facts,
        lost_rows=_count_lost(rows, status.settled_rows),
        lost_facts=status.lost_facts + collected.dropped_facts,
        closed=status.closed,
        trouble=status.message,
    )


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
    with RecordingFile(path) as file:
        for number in reversed(range(max(0, file.segment_count - _MOST_BACK), file.segment_count)):
            collected = RowsAndFacts(file.header)
            for _, frame in file.read_segment(number):
                if frame.kind == KIND_ROW:
                    collected.add(frame)
            rows = collected.take_rows()
            if len(rows):
                return int(rows[-1, FIELD["index"]] + rows[-1, FIELD["rows_merged"]])
    return after_row


@dataclass(frozen=True, slots=True, kw_only=True)
class TailPiece:
    """``rows`` is n x len(STEP_FIELDS), sorted by index."""

    rows: Rows
    facts: tuple[dict[str, Any], ...]


class RecordingTail:
    """Reads one process's file again and again, each time only what was appended since the last time.

    A file that was replaced by another one is read from its start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._resume = HEAD_BYTES
        self.is_closed = False
        """Whether the process ended its recording itself, as of the last complete ``read``."""

    def read(self) -> Iterator[TailPiece]:
        """The new content, in pieces of a segment. Raises RecordingError if the file is foreign, damaged at its head,
        or gone."""
        with RecordingFile(self._path) as file:
            if file.identity != self._identity or file.size_bytes < self._resume:
                self._identity, self._resume = file.identity, HEAD_BYTES
            for number in range(self._resume // file.header.segment_bytes, file.segment_count):
                frames = file.read_segment(number, self._resume)
                if not frames:
                    continue
                collected = RowsAndFacts(file.header)
                for _, frame in frames:
                    collected.add(frame)
                self._resume = frames[-1][0]
                yield TailPiece(rows=collected.take_rows(), facts=collected.take_facts())
            self.is_closed = file.status.closed


class RecordingFile(AbstractContextManager["RecordingFile"]):
    """An open recording: its header, its status, and its segments, read one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise RecordingError(f"cannot read {path}: {error.strerror}") from None
        try:
            head = self.read(0, STATUS_END)
            self.header: FileHeader = decode_header(head, str(path))
            self.status: Status = decode_status(head)
            stat = os.fstat(self._file.fileno())
            self.identity = (stat.st_dev, stat.st_ino)
            self.size_bytes = min(stat.st_size, _MAX_FILE_BYTES)
            self.segment_count = -(-self.size_bytes // self.header.segment_bytes)
        except BaseException:
            self._file.close()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

    def read(self, offset: int, length: int) -> bytes:
        try:
            self._file.seek(offset)
            return self._file.read(length)
        except OSError as error:
            raise RecordingError(f"cannot read {self._path}: {error.strerror}") from None

    def read_segment(self, number: int, begin: int = 0) -> list[tuple[int, Frame]]:
        """The frames of a segment, and where in the file each ends; only those after ``begin``."""
        start = number * self.header.segment_bytes
        begin = max(begin, start + SEGMENT_HEADER_BYTES, HEAD_BYTES)
        data = self.read(begin, start + self.header.segment_bytes - begin)
        frames = decode_frames(data, 0, len(data))
        return [(begin + frame.at + frame_span_bytes(len(frame.payload)), frame) for frame in frames]

    def read_frames(self) -> Iterator[Frame]:
        """Those of all segments, up to the first that has none."""
        for number in range(self.segment_count):
            frames = self.read_segment(number)
            if not frames:
                return
            yield from (frame for _, frame in frames)


class RowsAndFacts:
    """Frames in the order of writing -> every row, and the newest version of every fact, within fixed limits."""

    def __init__(self, header: FileHeader) -> None:
        self._header = header
        self._row_bytes = 8 * len(header.fields)
        self._index_at = 8 * header.fields.index("index")
        self._rows: dict[int, bytes] = {}
        self._facts: dict[object, dict[str, Any]] = {}
        self._facts_bytes = 0
        self.dropped_facts = 0

    def add(self, frame: Frame) -> None:
        if frame.kind == KIND_FACT:
            self._add_fact(frame)
        elif len(frame.payload) == self._row_bytes:
            index: int = _INT64.unpack_from(frame.payload, self._index_at)[0]
            if index in self._rows or len(self._rows) < _MAX_ROWS:
                self._rows[index] = frame.payload

    def _add_fact(self, frame: Frame) -> None:
        self._facts_bytes += len(frame.payload)
        full = len(self._facts) >= _MAX_FACTS or self._facts_bytes > _MAX_FACTS_BYTES
        fact = None if full else decode_object(frame.payload)
        if fact is None or not isinstance(fact.get("kind"), str):
            self.dropped_facts += 1
            return
        key: object = frame.sequence
        # A health line with an id replaces the previous one, like the last-wins kinds.
        if fact["kind"] in LAST_WINS_KINDS or (fact["kind"] == "health" and "id" in fact):
            key = fact_key(fact)
            self._facts.pop(key, None)
        self._facts[key] = fact

    def take_facts(self) -> tuple[dict[str, Any], ...]:
        """In the order of writing."""
        return tuple(self._facts.values())

    def take_rows(self) -> Rows:
        """Sorted by index, columns by name: what the file lacks is UNKNOWN, what we do not know is left out."""
        payloads = b"".join(payload for _, payload in sorted(self._rows.items()))
        raw = np.frombuffer(payloads, dtype="<i8").reshape(-1, len(self._header.fields))
        rows: Rows
        if self._header.fields == STEP_FIELDS:
            rows = raw.astype(np.int64)
        else:
            rows = np.full((len(raw), len(STEP_FIELDS)), UNKNOWN, dtype=np.int64)
            for column, name in enumerate(self._header.fields):
                if name in FIELD:
                    rows[:, FIELD[name]] = raw[:, column]
        if "rows_merged" not in self._header.fields:
            rows[:, FIELD["rows_merged"]] = 1
        index, merged = rows[:, FIELD["index"]], rows[:, FIELD["rows_merged"]]
        good = (index >= 0) & (index < _MAX_COUNT) & (merged > 0) & (merged < _MAX_COUNT)
        return rows[good]


def _count_lost(rows: Rows, settled_rows: int) -> int:
    """Rows missing before, between and after those that are there."""
    settled_rows = min(max(settled_rows, 0), _MAX_COUNT)
    if not len(rows):
        return settled_rows
    start = rows[:, FIELD["index"]]
    end = np.maximum.accumulate(start + rows[:, FIELD["rows_merged"]])
    between = np.maximum(start[1:] - end[:-1], 0).sum()
    return int(start[0]) + int(between) + max(0, settled_rows - int(end[-1]))


def _describe_losses(process: ProcessRecording) -> list[str]:
    """One line if rows or facts are missing, unless the writer reports it itself."""
    if any(fact.get("kind") == "health" and fact.get("id") == "recording" for fact in process.facts):
        return []
    lost = [
        f"{count} {what}{'s' if count > 1 else ''}"
        for count, what in ((process.lost_rows, "row"), (process.lost_facts, "fact"))
        if count > 0
    ]
    if not lost:
        return []
    reason = f" ({process.trouble})" if process.trouble else ""
    return [f"{process.path.name} lacks {' and '.join(lost)}{reason}"]


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
    if _never_began(path):
        return False
    with RecordingFile(path) as file:
        fields = file.header.fields
        if "closed_by" not in fields:
            return True
        layout, at = f"<{len(fields)}q", fields.index("closed_by")
        rows = (
            struct.unpack(layout, frame.payload)
            for frame in file.read_frames()
            if frame.kind == KIND_ROW and len(frame.payload) == 8 * len(fields)
        )
        return any(row[at] != CLOSED_BY_END for row in rows)


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
