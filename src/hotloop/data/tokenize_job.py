"""Files and a tokenizer -> a folder of tokens, by several processes; killed at any time, the same call goes on.

One process cuts the files into chunks and writes what the workers answer, in the order of the chunks: the bytes are the
same for any number of processes. About once a second it brings the shards to the disk and notes how far they go.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from hotloop import __version__
from hotloop.core.errors import HotloopError, UsageError
from hotloop.core.redact import redact_text
from hotloop.core.tokenizing import REJECTIONS, Rejection, TokenizeReport

from .documents import Rejected
from .first_file import check_first_file
from .shard_writer import ShardWriter
from .text_chunks import Chunk, Cursor, plan_chunks
from .token_folder import MANIFEST, TOKEN_BYTES, open_folder, write_json, write_manifest
from .token_worker import EncodedChunk, EncodeRules, encode_chunk, start_worker
from .tokenize_state import (
    JOB,
    PROGRESS,
    JobState,
    TokenizeJob,
    check_folder,
    check_place,
    hold_folder,
    read_progress,
    remove_own_files,
    write_progress,
)

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
    """Write the folder, or what is missing of it. Raises UsageError where it holds anything else.

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
        rules = EncodeRules(
            cut=job.cut,
            token_type=job.tokenizer.token_type,
            end_id=job.end_id,
            unknown_id=job.tokenizer.unknown_id,
            special_tokens=job.special_tokens,
            batch_documents=batch_documents,
        )
        with closing(writer), _start_pool(job, rules, processes_count) as pool:
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
    """Encode every chunk from the state's cursor on, and write the answers in order."""
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
                    write_progress(folder, writer, state)
                    synced_s = time.monotonic()
    except BrokenProcessPool as error:
        raise HotloopError(
            "a tokenizing process was killed, perhaps for want of memory; the same command goes on from here, with "
            "fewer --processes or a smaller --document-limit"
        ) from error
    except OSError as error:
        raise HotloopError(
            f"{error.filename or folder} cannot be written: {error.strerror}; the same command goes on from here"
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


def _start_pool(job: TokenizeJob, rules: EncodeRules, processes_count: int) -> ProcessPoolExecutor:
    # Forking would copy this process's threads' locks; a fresh interpreter takes a fraction of a second.
    return ProcessPoolExecutor(
        max_workers=processes_count,
        mp_context=get_context("spawn"),
        initializer=start_worker,
        initargs=(job.tokenizer.content, job.tokenizer.path, rules),
    )


def _finish(job: TokenizeJob, folder: Path, writer: ShardWriter, state: JobState, description: dict[str, Any]) -> None:
    if not state.documents_count:
        reasons = ", ".join(f"{count} {REJECTIONS[kind]}" for kind, count in sorted(state.rejected.counts.items()))
        remove_own_files(folder)
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
            "rejections": [asdict(one) for one in _list_rejections(state.rejected)],
            "sources": sources,
            "shards": [asdict(shard) for shard in writer.shards],
        },
    )
    (folder / PROGRESS).unlink(missing_ok=True)


def _list_rejections(rejected: Rejected) -> tuple[Rejection, ...]:
    return tuple(
        Rejection(kind=kind, count=rejected.counts[kind], first=redact_text(rejected.firsts[kind]))
        for kind in REJECTIONS
        if kind in rejected.counts
    )


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
    """What the folder's manifest says, and how this run went."""
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
