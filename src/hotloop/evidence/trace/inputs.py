"""Paths -> traces of ranks: the files that are meant, the rank of each, and a worker process per file.

The rank of a trace is the one in the file (distributedInfo), else in its name or its folder's, else its position in the
order of names; ``facts.rank_source`` says which of these was used.
"""

from __future__ import annotations

import multiprocessing
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from hotloop.core.catalogue import Catalogue
from hotloop.core.errors import RecordingError, TraceError
from hotloop.core.redact import redact_text
from hotloop.core.trace import TraceFacts, TraceNote
from hotloop.core.trace_results import ReducedTrace, ReducedTraces

from .byte_source import ByteSource, Progress
from .columns import TraceColumns, TraceFormat
from .recording import find_run

R = TypeVar("R")
Outcome: TypeAlias = "tuple[ReducedTrace[R], ...] | str"
"""The result for a file; text if it could not be read."""

FORMATS: Catalogue[TraceFormat] = Catalogue(TraceFormat, "hotloop.evidence.trace.formats")

_HEAD_BYTES = 1 << 16
_MAX_FILES = 100_000

_RANK_IN_NAME = (
    re.compile(r"(?i)(?:^|[^a-z])rank[-_.=\[]?(\d{1,6})(?!\d)"),
    re.compile(r"(?i)(?:^|[^a-z])worker[-_.=\[]?(\d{1,6})(?!\d)"),
    re.compile(r"\[(\d{1,6})\](?=\.|$)"),
)
_RANK_IN_HEAD = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]{0,4096}?"rank"\s*:\s*(\d{1,6})\b')
_REMOTE = re.compile(r"(?i)[a-z][a-z0-9+.-]+://")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """A file to read. ``rank`` is what is known before reading: by its head, name or order, or None."""

    path: Path
    source: str
    """The file as the user would recognize it."""
    format: str
    rank: int | None
    rank_source: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFiles:
    """What the given paths mean."""

    files: tuple[TraceFile, ...]
    notes: tuple[TraceNote, ...]


def find_traces(paths: Iterable[str | Path]) -> TraceFiles:
    """The files that ``paths`` mean; folders are searched, one level deep, for names and contents of known formats.

    Raises TraceError if a path does not exist or nothing was found.
    """
    found: list[tuple[Path, str]] = []
    notes: list[TraceNote] = []
    for given in paths:
        path = Path(given)
        if path.is_dir():
            found += _search_folder(path, notes)
        elif path.is_file():
            found.append((path, path.name))
        else:
            raise TraceError(f"{path} does not exist or is not readable; give a trace file or a folder of trace files.")
    known: dict[Path, tuple[Path, str]] = {}
    for path, source in found:
        known.setdefault(path.resolve(), (path, source))
    if not known:
        endings = sorted({suffix for form in FORMATS.values() for suffix in form.suffixes})
        raise TraceError(f"no trace found; hotloop reads {', '.join(endings)} (torch.profiler, nsys export).")
    return TraceFiles(files=tuple(_plan_ranks(known.values())), notes=tuple(notes))


def read_trace_file(file: TraceFile, *, progress: Progress | None = None) -> tuple[TraceColumns, ...]:
    """The traces in one file."""
    try:
        traces = tuple(FORMATS[file.format].read(file.path, progress))
    except OSError as error:
        raise TraceError(f"{file.path} cannot be read: {error.strerror or error}.") from error
    return tuple(_settle(trace, file, alone=len(traces) == 1) for trace in traces)


def map_traces(
    paths: Iterable[str | Path],
    reduce: Callable[[TraceColumns], R],
    workers: int = 1,
    *,
    progress: Progress | None = None,
) -> ReducedTraces[R]:
    """``reduce`` of every trace that ``paths`` mean, each in its own process as far as ``workers`` allow.

    ``reduce`` must be a module-level function, and its result small: it is sent back, the columns are not. A file that
    cannot be read is noted if others can be read; if none can, the first error is raised. ``progress`` gets bytes of
    files read and bytes of all files. Remote paths (``s3://...``) are copied to a temporary folder first.

    Workers are fresh interpreters: a script that requests more than one needs the usual ``if __name__ == "__main__"``.
    """
    with tempfile.TemporaryDirectory(prefix="hotloop-") as scratch:
        local = [
            fetch_remote(str(path), Path(scratch) / str(at), progress) if is_remote(path) else path
            for at, path in enumerate(paths)
        ]
        return _map_files(find_traces(local), reduce, workers, progress)


def _map_files(
    files: TraceFiles,
    reduce: Callable[[TraceColumns], R],
    workers: int,
    progress: Progress | None,
) -> ReducedTraces[R]:
    total_bytes = sum(file.size_bytes for file in files.files)
    work = partial(_reduce_file, reduce=reduce)
    outcomes: list[Outcome[R]] = []
    if workers <= 1 or len(files.files) == 1:
        done_bytes = 0
        for file in files.files:
            outcomes.append(work(file, progress=_shift(progress, done_bytes, total_bytes)))
            done_bytes += file.size_bytes
    else:
        outcomes = _reduce_in_processes(files.files, work, min(workers, len(files.files)), progress, total_bytes)
    errors = [outcome for outcome in outcomes if isinstance(outcome, str)]
    if len(errors) == len(outcomes):
        raise TraceError(errors[0])
    notes = [
        *files.notes,
        *(TraceNote(level="error", code="unreadable-file", message=error) for error in errors),
    ]
    traces = [trace for outcome in outcomes if not isinstance(outcome, str) for trace in outcome]
    traces.sort(key=lambda trace: (trace.facts.rank is None, trace.facts.rank or 0))
    notes += note_ranks([trace.facts for trace in traces])
    return ReducedTraces(traces=tuple(traces), notes=tuple(notes))


def note_ranks(facts: Sequence[TraceFacts]) -> list[TraceNote]:
    """Notes on a set: how ranks were found if the files do not say, and ranks that occur twice or are missing."""
    notes: list[TraceNote] = []
    sources = Counter(fact.rank_source for fact in facts if fact.rank is not None)
    for source in ("file name", "order"):
        # For a single trace, nothing depends on its rank, and the table of files shows where it came from.
        if sources[source] and len(facts) > 1:
            notes.append(
                TraceNote(
                    level="info" if source == "file name" else "warning", code="guessed-ranks", count=sources[source],
                    message=f"The rank of {sources[source]} of {len(facts)} traces was taken from the {source}"
                    + (" of the files." if source == "order" else "."),
                )
            )  # fmt: skip
    ranks = Counter(fact.rank for fact in facts if fact.rank is not None)
    twice = sorted(rank for rank, count in ranks.items() if count > 1)
    if twice:
        names = ", ".join(fact.source for fact in facts if fact.rank == twice[0])
        notes.append(
            TraceNote(
                level="warning", code="duplicate-ranks", count=len(twice),
                message=f"{len(twice)} ranks occur more than once, such as rank {twice[0]}: {names}. They are "
    "analyzed separately and not matched with each other.",
            )
        )  # fmt: skip
    world_size = max((fact.world_size or 0 for fact in facts), default=0)
    if len(facts) > 1 and len(ranks) < world_size:
        notes.append(
            TraceNote(
                level="info", code="missing-ranks", count=world_size - len(ranks),
                message=f"only {len(ranks)} of {world_size} ranks are present; waits for the others are unknown.",
            )
        )  # fmt: skip
    return notes


def is_remote(path: str | Path) -> bool:
    """True for URLs such as s3://bucket/traces/."""
    return isinstance(path, str) and _REMOTE.match(path) is not None and not path.startswith("file://")


def fetch_remote(url: str, folder: Path, progress: Progress | None = None) -> Path:
    """Copy the file or the folder's trace files at ``url`` into ``folder``; returns where they are then.

    Needs fsspec and, for S3 or Google Cloud Storage, its driver. Raises TraceError with the command that installs it.
    """
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise TraceError(f"{url} needs fsspec, which is not installed; run: pip install 'hotloop[remote]'.") from None
    try:
        system, path = url_to_fs(url)
        targets = sorted(system.find(path, maxdepth=2)) if system.isdir(path) else [path]
        endings = tuple(suffix for form in FORMATS.values() for suffix in form.suffixes)
        chosen = [target for target in targets if len(targets) == 1 or target.lower().endswith(endings)]
        sizes = [int(system.size(target) or 0) for target in chosen]
        done_bytes = 0
        for target, size in zip(chosen, sizes, strict=True):
            relative = target[len(path) :].strip("/") if len(targets) > 1 else target.rsplit("/", 1)[-1]
            place = folder / Path(*[part for part in relative.split("/") if part not in ("", ".", "..")])
            place.parent.mkdir(parents=True, exist_ok=True)
            with system.open(target, "rb") as source, place.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            done_bytes += size
            if progress is not None:
                progress(done_bytes, sum(sizes))
    except ImportError as error:
        raise TraceError(f"{url} needs a driver that is not installed: {error}.") from None
    except Exception as error:  # every driver has its own errors, and we define none of them
        raise TraceError(_describe_remote_error(url, error)) from error
    if not chosen:
        raise TraceError(f"{redact_text(url)} contains no file that looks like a trace.")
    return folder if len(targets) > 1 else folder / chosen[0].rsplit("/", 1)[-1]


def _describe_remote_error(url: str, error: Exception) -> str:
    """One line that distinguishes three cases: nothing there, no permission to read it, or something else."""
    shown, words = redact_text(url), redact_text(" ".join(str(error).split())).rstrip(".")
    if isinstance(error, FileNotFoundError):
        return f"{shown} does not exist ({words}); give the URL of a trace file or of a folder of trace files."
    if isinstance(error, PermissionError) or "Credential" in type(error).__name__:
        return f"{shown} cannot be read: {words}; set up credentials as for other programs."
    return f"{shown} cannot be read: {type(error).__name__}: {words}."


def rank_of_name(path: Path) -> int | None:
    """The rank in a file's name, else in its folder's.

    >>> [rank_of_name(Path(name)) for name in ("rank-70.x.json", "worker0.1.json", "a_rank1.json", "[3].json", "b")]
    [70, 0, 1, 3, None]
    """
    for name in (path.name, path.parent.name):
        for pattern in _RANK_IN_NAME:
            found = pattern.search(name)
            if found:
                return int(found[1])
    return None


def _search_folder(folder: Path, notes: list[TraceNote]) -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    left_out: list[str] = []
    endings = tuple(suffix for form in FORMATS.values() for suffix in form.suffixes)
    try:
        inner = sorted(folder.iterdir(), key=_natural_order)
        files = [path for path in inner if path.is_file()]
        for path in inner:
            if path.is_dir() and not path.name.startswith("."):
                files += sorted((file for file in path.iterdir() if file.is_file()), key=_natural_order)
    except OSError as error:
        raise TraceError(f"{folder} cannot be searched: {error.strerror or error}.") from error
    for path in files[:_MAX_FILES]:
        if path.name.startswith(".") or not path.name.lower().endswith(endings):
            continue
        source = str(path.relative_to(folder))
        if _recognise(read_head(path)) is None:
            left_out.append(source)
        else:
            found.append((path, source))
    if left_out:
        notes.append(
            TraceNote(
                level="info", code="other-files", count=len(left_out),
                message=f"{len(left_out)} files in {folder.name} that are not traces were left out, such as "
                    f"{left_out[0]}.",
            )
        )  # fmt: skip
    return found


def _natural_order(path: Path) -> list[tuple[int, int | str]]:
    return [
        (0, int(part)) if part.isdigit() and part.isascii() else (1, part) for part in re.split(r"(\d+)", path.name)
    ]


def read_head(path: Path) -> bytes:
    """The first kilobytes of a file, unpacked if it is gzip; empty if it cannot be read."""
    try:
        with ByteSource(path) as source:
            return source.read(_HEAD_BYTES)[: _HEAD_BYTES * 4]
    except (OSError, TraceError):
        return b""


def _recognise(head: bytes) -> str | None:
    """The format of a file by its content."""
    return next((form.id for form in FORMATS.values() if form.sniff(head)), None)


def _plan_ranks(found: Iterable[tuple[Path, str]]) -> list[TraceFile]:
    planned: list[TraceFile] = []
    for path, source in found:
        head = read_head(path)
        in_head = _RANK_IN_HEAD.search(head)
        in_name = rank_of_name(path)
        rank = int(in_head[1]) if in_head else in_name
        planned.append(
            TraceFile(
                path=path,
                source=source,
                # A file that was named outright is tried even if nothing in it looks familiar: its error says why.
                format=_recognise(head) or _format_of_name(path),
                rank=rank,
                rank_source="distributedInfo" if in_head else "unknown" if in_name is None else "file name",
                size_bytes=path.stat().st_size,
            )
        )
    if len(planned) == 1:
        return planned
    taken = {file.rank for file in planned}
    free = (rank for rank in range(2 * len(planned) + 1) if rank not in taken)
    return [file if file.rank is not None else replace(file, rank=next(free), rank_source="order") for file in planned]


def _format_of_name(path: Path) -> str:
    name = path.name.lower()
    return next((form.id for form in FORMATS.values() if name.endswith(tuple(form.suffixes))), "kineto")


def _settle(trace: TraceColumns, file: TraceFile, *, alone: bool) -> TraceColumns:
    """The trace under its file's name, with the planned rank if it has none of its own."""
    facts = replace(trace.facts, source=file.source)
    if facts.rank is None and alone and file.rank is not None:
        facts = replace(facts, rank=file.rank, rank_source=file.rank_source)
    trace.facts = facts
    return trace


def _reduce_file(
    file: TraceFile,
    *,
    reduce: Callable[[TraceColumns], R],
    progress: Progress | None = None,
) -> Outcome[R]:
    try:
        traces = read_trace_file(file, progress=progress)
    except RecordingError as error:
        return str(error)
    return tuple(ReducedTrace(facts=trace.facts, notes=trace.notes, result=reduce(trace)) for trace in traces)


def _reduce_in_processes(
    files: Sequence[TraceFile],
    work: Callable[[TraceFile], Outcome[R]],
    workers: int,
    progress: Progress | None,
    total_bytes: int,
) -> list[Outcome[R]]:
    outcomes: dict[int, Outcome[R]] = {}
    done_bytes = 0
    # A fresh process each: memory of one file is released before the next, and no thread of ours is forked.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(work, file): at for at, file in enumerate(files)}
        for future in as_completed(list(futures)):
            at = futures.pop(future)  # releases the result
            try:
                outcomes[at] = future.result()
            except BrokenExecutor:
                outcomes[at] = (
                    f"{files[at].source}: the process that read it was killed, possibly because memory ran out; use "
                    "fewer --workers."
                )
            done_bytes += files[at].size_bytes
            if progress is not None:
                progress(done_bytes, total_bytes)
    return [outcomes[at] for at in range(len(files))]


def _shift(progress: Progress | None, done_bytes: int, total_bytes: int) -> Progress | None:
    if progress is None:
        return None
    return lambda now_bytes, _: progress(done_bytes + now_bytes, total_bytes)


def find_recorded(name: str, root: Path) -> Path | None:
    """The folder of a run; None for what must be traces. Raises RecordingError for anything else."""
    path = root / name
    if is_remote(name) or path.is_file():
        return None
    try:
        return find_run(name, root)
    except RecordingError as error:
        if path.is_dir():
            return None
        if name == "last":
            raise
        raise RecordingError(f"{name} is not a file, a folder or a run: {error}") from None
