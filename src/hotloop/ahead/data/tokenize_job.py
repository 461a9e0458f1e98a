"""Files and a tokenizer -> a folder of tokens, by several processes; after a kill at any time, the same call continues.

One process cuts the files into chunks and writes the workers' results, in the order of the chunks: the bytes are the
same for any number of processes. About once a second, it writes the shards to disk and notes its progress.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from hotloop import __version__
from hotloop.core.errors import HotloopError, UsageError
from hotloop.core.redact import redact_text
from hotloop.core.tokenizing import REJECTIONS, Rejection, TokenizeReport

from .documents import Rejected, find_columns
from .shard_writer import ShardWriter
from .text_chunks import Chunk, Cursor, CutRules, name_damage, plan_chunks, read_lines
from .text_files import TABLES, TextFile, open_plain, unpack
from .token_folder import MANIFEST, TOKEN_BYTES, open_folder, read_json, write_json, write_manifest
from .token_worker import EncodedChunk, TokenizeJob, encode_chunk, start_worker

JOB, PROGRESS, LOCK = "job.json", "progress.json", ".lock"
_OPTIONS = {
    "sources": "the sources",
    "tokenizer": "--tokenizer, its file or the version of its library,",
    "column": "--column",
    "documents": "--documents",
    "document_limit_bytes": "--document-limit in bytes",
    "end_id": "the id that --append-eos appends",
    "special_tokens": "--special-tokens",
    "shard_tokens": "--shard-tokens",
}
"""Keys of a job, as the command line names them."""


@dataclass(slots=True)
class JobState:
    """A job's progress; ``size_bytes`` counts stored bytes of the sources."""

    cursor: Cursor = field(default_factory=Cursor)
    size_bytes: int = 0
    documents_count: int = 0
    tokens_count: int = 0
    unknown_count: int = 0
    rejected: Rejected = field(default_factory=Rejected)

    def take(self, chunk: Chunk, encoded: EncodedChunk, token_bytes: int) -> None:
        """Count a chunk that was written."""
        self.cursor = chunk.following
        self.size_bytes += chunk.size_bytes
        self.documents_count += len(encoded.lengths)
        self.tokens_count += len(encoded.tokens) // token_bytes
        self.unknown_count += encoded.unknown_count
        for kind, count in encoded.rejected.counts.items():
            self.rejected.add(kind, encoded.rejected.firsts[kind], count)


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Create the folder and keep others from writing into it; remove it if nothing was written. Raises UsageError."""
    was_there = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {entry.name for entry in folder.iterdir()} - {LOCK, JOB + ".tmp"}
        if names and JOB not in names:
            raise UsageError(f"{folder} holds other files ({min(names)}); give a new or empty folder with -o")
        descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}; give another folder with -o") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"another hotloop tokenize is writing {folder}; wait until it ends, or give another folder"
            ) from None
        if os.fstat(descriptor).st_nlink == 0:  # removed by the process that held it
            raise UsageError(f"another hotloop tokenize has just given up {folder}; type the same command again")
        try:
            yield
        except BaseException:
            _remove_empty(folder, was_there)
            raise
    finally:
        os.close(descriptor)


def _remove_empty(folder: Path, was_there: bool) -> None:
    """After a job that wrote nothing, leave no lock and no folder that it created."""
    if {entry.name for entry in folder.iterdir()} == {LOCK}:
        (folder / LOCK).unlink()
        if not was_there:
            folder.rmdir()


def check_folder(folder: Path, description: dict[str, Any]) -> bool:
    """Whether the folder already belongs to this very job. Raises UsageError if it belongs to another."""
    if not (folder / JOB).is_file():
        return False
    kept = read_json(folder / JOB)
    if not isinstance(kept, dict):
        raise UsageError(f"{folder}/{JOB} is damaged; give a new folder with -o")
    differing = next((key for key in description if kept.get(key) != description[key]), None)
    if differing is None:
        return True
    shown = f"{_OPTIONS.get(differing, differing)} changed"
    if differing == "sources":
        pairs = zip_longest(kept.get("sources") or (), description["sources"])
        changed = next(new or old for old, new in pairs if old != new)
        shown += f" (such as {changed['path']})"
    elif differing != "tokenizer":
        there, here = ("none" if one.get(differing) is None else one[differing] for one in (kept, description))
        shown += f", {there} there and {here} here"
    raise UsageError(f"{folder} belongs to another job: {shown}; give a new folder with -o")


def check_place(job: TokenizeJob, folder: Path) -> None:
    """The next run would read an output next to the inputs as one of them."""
    place = folder.resolve()
    for file in job.files:
        if place in Path(file.path).resolve().parents:
            raise UsageError(f"-o {folder} holds the source {file.path}; give a separate folder")


def read_progress(folder: Path, writer: ShardWriter) -> JobState:
    """The state of a job that was interrupted, and the writer's files cut back to it."""
    if not (folder / PROGRESS).is_file():
        writer.resume({"shards": [], "tokens_count": 0, "documents_count": 0, "sha256": ""})
        return JobState()
    kept = read_json(folder / PROGRESS)
    try:
        state = kept["state"]
        writer.resume(kept["writer"])
        return JobState(**{**state, "cursor": Cursor(**state["cursor"]), "rejected": Rejected(**state["rejected"])})
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{folder}/{PROGRESS} is damaged ({error!r}); delete the folder and start again") from error


def check_first_file(files: Sequence[TextFile], rules: CutRules) -> None:
    """Check that the first file with content has the column, before hours are spent on the rest.

    Raises UsageError; a corrupt line is counted later.
    """
    file = next((one for one in files if one.size_bytes), None)
    if file is None or file.form == "text":
        return
    if file.form in TABLES:
        next(plan_chunks([file], Cursor(), rules), None)  # reading a table checks its column
        return
    with open_plain(file.path) as stored:
        blocks = read_lines(unpack(stored, file.packing, file.path), file.path, file.form, rules.limit_bytes)
        block = next(name_damage(blocks, file.path), None)
    line = next((one for one in block.content.split(b"\n") if one.strip()), b"") if block else b""
    if line.lstrip(b"\xef\xbb\xbf \t").startswith(b"["):
        raise UsageError(f"{file.path} is a JSON array, not one object per line; convert it: jq -c '.[]' {file.path}")
    names = find_columns(line)
    if names and rules.column not in names:
        raise UsageError(f"{file.path} has no column {rules.column!r}; give --column ({', '.join(names[:20])})")


_SYNC_EVERY_S = 1.0

Notice = Callable[[JobState], None]
"""Called after each chunk."""


def run_job(
    job: TokenizeJob,
    folder: Path,
    *,
    processes_count: int,
    batch_documents: int,
    is_strict: bool = False,
    notice: Notice | None = None,
) -> TokenizeReport:
    """Write the folder, or its missing part. Raises UsageError if it holds anything else.

    ``is_strict``: the first document that is left out ends the job, except empty ones.
    """
    began_s = time.monotonic()
    check_place(job, folder)
    description = job.describe()
    with hold_folder(folder):
        is_known = check_folder(folder, description)
        if (folder / MANIFEST).is_file():
            return _report(
                job, folder, processes_count, time.monotonic() - began_s, 0, was_resumed=False, was_complete=True
            )
        writer = ShardWriter(folder, job.tokenizer.token_type, job.shard_tokens)
        state = read_progress(folder, writer) if is_known else JobState()
        if state.cursor == Cursor():
            check_first_file(job.files, job.cut)
        write_json(folder / JOB, description)
        before = state.tokens_count
        was_resumed = state.cursor != Cursor()
        # Forking would copy this process's threads' locks; a fresh interpreter takes a fraction of a second.
        started = ProcessPoolExecutor(
            max_workers=processes_count,
            mp_context=get_context("spawn"),
            initializer=start_worker,
            initargs=(replace(job, files=()), batch_documents),
        )
        with closing(writer), started as pool:
            _write_chunks(job, folder, pool, writer, state, processes_count, is_strict, notice)
            _finish(job, folder, writer, state, description)
        wall_s = time.monotonic() - began_s
        return _report(
            job,
            folder,
            processes_count,
            wall_s,
            state.tokens_count - before,
            was_resumed=was_resumed,
            was_complete=False,
        )


def _write_chunks(
    job: TokenizeJob,
    folder: Path,
    pool: ProcessPoolExecutor,
    writer: ShardWriter,
    state: JobState,
    processes_count: int,
    is_strict: bool,
    notice: Notice | None,
) -> None:
    """Encode every chunk from the state's cursor on, and write the results in order."""
    token_bytes = TOKEN_BYTES[job.tokenizer.token_type]
    synced_s = time.monotonic()
    chunks = plan_chunks(job.files, state.cursor, job.cut)
    try:
        with closing(_encode_in_order(pool, chunks, 2 * processes_count + 1)) as answers:
            for chunk, encoded in answers:
                _check_strictly(encoded, is_strict)
                writer.add(encoded.tokens, encoded.lengths)
                state.take(chunk, encoded, token_bytes)
                if notice is not None:
                    notice(state)
                if time.monotonic() - synced_s > _SYNC_EVERY_S:
                    write_json(folder / PROGRESS, {"writer": writer.sync(), "state": asdict(state)})
                    synced_s = time.monotonic()
    except BrokenProcessPool as error:
        raise HotloopError(
            "a tokenizing process was killed, perhaps because memory ran out; the same command continues from here, "
            "with fewer --processes or a smaller --document-limit"
        ) from error
    except OSError as error:
        raise HotloopError(
            f"{error.filename or folder} cannot be written: {error.strerror}; the same command continues from here"
        ) from error


def _check_strictly(encoded: EncodedChunk, is_strict: bool) -> None:
    faults = [(place, kind) for kind, place in encoded.rejected.firsts.items() if kind != "empty"]
    if is_strict and faults:
        place, kind = faults[0]
        raise UsageError(f"{place}: {REJECTIONS[kind]}; fix it, or omit --strict to skip and count such documents")


def _encode_in_order(
    pool: ProcessPoolExecutor, chunks: Iterator[Chunk], most_waiting: int
) -> Generator[tuple[Chunk, EncodedChunk], None, None]:
    """Each chunk with its tokens, in order; never more than ``most_waiting`` of them in memory."""
    waiting: deque[tuple[Chunk, Future[EncodedChunk]]] = deque()
    try:
        for chunk in chunks:
            waiting.append((chunk, pool.submit(encode_chunk, chunk)))
            if len(waiting) >= most_waiting:
                first, answer = waiting.popleft()
                yield first, answer.result()
        while waiting:
            first, answer = waiting.popleft()
            yield first, answer.result()
    finally:
        for _, answer in waiting:
            answer.cancel()


def _finish(job: TokenizeJob, folder: Path, writer: ShardWriter, state: JobState, description: dict[str, Any]) -> None:
    if not state.documents_count:
        reasons = ", ".join(f"{count} {REJECTIONS[kind]}" for kind, count in sorted(state.rejected.counts.items()))
        for name in (JOB, PROGRESS):
            (folder / name).unlink(missing_ok=True)
        raise UsageError(
            f"no document in {len(job.files)} file{'s' * (len(job.files) != 1)}{f' ({reasons})' if reasons else ''}"
        )
    writer.finish()
    sources = [{key: value for key, value in one.items() if key != "version"} for one in description["sources"]]
    write_manifest(
        folder,
        {
            **{key: value for key, value in description.items() if key not in ("schema", "sources", "tokenizer")},
            "tool_version": __version__,
            "tokenizer": {**description["tokenizer"], "ids_count": job.tokenizer.ids_count},
            "token_type": job.tokenizer.token_type,
            "documents_count": state.documents_count,
            "tokens_count": state.tokens_count,
            "unknown_count": None if job.tokenizer.unknown_id is None else state.unknown_count,
            "rejections": [
                {"kind": kind, "count": state.rejected.counts[kind], "first": redact_text(state.rejected.firsts[kind])}
                for kind in REJECTIONS
                if kind in state.rejected.counts
            ],
            "sources": sources,
            "shards": [asdict(shard) for shard in writer.shards],
        },
    )
    (folder / PROGRESS).unlink(missing_ok=True)


def _report(
    job: TokenizeJob,
    folder: Path,
    processes_count: int,
    wall_s: float,
    run_tokens_count: int,
    *,
    was_resumed: bool,
    was_complete: bool,
) -> TokenizeReport:
    """The content of the folder's manifest, and statistics of this run."""
    found = open_folder(folder)
    content = found.content
    return TokenizeReport(
        tool_version=__version__,
        folder=str(folder),
        token_type=found.token_type,
        vocabulary_count=job.tokenizer.ids_count,
        sources_count=len(job.files),
        source_bytes=sum(file.size_bytes for file in job.files),
        documents_count=found.documents_count,
        tokens_count=found.tokens_count,
        unknown_count=content["unknown_count"],
        rejections=tuple(Rejection(**one) for one in content["rejections"]),
        shards=found.shards,
        processes_count=processes_count,
        wall_s=wall_s,
        run_tokens_count=run_tokens_count,
        was_resumed=was_resumed,
        was_complete=was_complete,
    )
