"""The settings that determine the bytes of a folder of tokens, and the work of a process: a chunk of text -> its
tokens."""

from __future__ import annotations

import os
import signal
import sys
import threading
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.redact import redact_text

from .documents import Rejected, read_documents
from .text_chunks import Chunk, CutRules
from .text_files import TextFile
from .tokenizer_file import TokenizerFile, load_tokenizer

BATCH_CHARS = 1 << 19
"""The upper limit of a batch: the library keeps more than 100 bytes for each token of a batch."""
_JOB_SCHEMA = "hotloop.tokenize-job/1"
_TYPE_CODES = {"uint16": "H", "int32": "i"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeJob:
    """The settings that determine the bytes of a folder of tokens."""

    files: tuple[TextFile, ...]
    tokenizer: TokenizerFile
    cut: CutRules
    end_id: int | None
    special_tokens: bool
    shard_tokens: int

    def describe(self) -> dict[str, Any]:
        """The job as plain JSON; two jobs are the same when these are equal."""
        return {
            "schema": _JOB_SCHEMA,
            "sources": [
                {"path": redact_text(one.path), "bytes": one.size_bytes, "format": one.form, "version": one.stamp}
                for one in self.files
            ],
            "tokenizer": {"sha256": self.tokenizer.sha256, "library": self.tokenizer.library},
            "column": self.cut.column,
            "documents": "file" if self.cut.whole_files else "line",
            "document_limit_bytes": self.cut.limit_bytes,
            "end_id": self.end_id,
            "special_tokens": self.special_tokens,
            "shard_tokens": self.shard_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChunk:
    """``tokens`` are little-endian in the type of the job; ``lengths`` are int32, one per document."""

    tokens: bytes
    lengths: array[int]
    unknown_count: int
    rejected: Rejected


def _cut_batches(documents: Iterable[str], most_documents: int) -> Iterator[list[str]]:
    batch: list[str] = []
    chars_count = 0
    for text in documents:
        batch.append(text)
        chars_count += len(text)
        if len(batch) >= most_documents or chars_count >= BATCH_CHARS:
            yield batch
            batch, chars_count = [], 0
    if batch:
        yield batch


_WORKER: tuple[TokenizeJob, int, Any] | None = None
"""State of this process, as a pool calls plain functions: the job, documents of a batch, and the tokenizer."""


def start_worker(job: TokenizeJob, batch_documents: int) -> None:
    """Prepare this process; it ends with its parent, even if the parent is killed."""
    global _WORKER
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes already fill the cores
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _WORKER = job, batch_documents, load_tokenizer(job.tokenizer.content, job.tokenizer.path)


def encode_chunk(chunk: Chunk) -> EncodedChunk:
    """The chunk's tokens, in a process that ``start_worker`` prepared.

    Raises UsageError if the tokenizer cannot read a text.
    """
    assert _WORKER is not None
    job, batch_documents, tokenizer = _WORKER
    tokens, lengths, rejected = array(_TYPE_CODES[job.tokenizer.token_type]), array("i"), Rejected()
    unknown_count = 0
    for batch in _cut_batches(read_documents(chunk, job.cut, rejected), batch_documents):
        try:
            encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=job.special_tokens)
        except Exception as error:  # the library raises plain Exception
            raise UsageError(f"the tokenizer cannot encode a text of {chunk.parts[0].path}: {error}") from error
        for encoding in encodings:
            ids = encoding.ids
            if not ids:
                rejected.add("empty", f"a document of {chunk.parts[0].path}")
                continue
            if job.tokenizer.unknown_id is not None:
                unknown_count += ids.count(job.tokenizer.unknown_id)
            if job.end_id is not None:
                ids.append(job.end_id)
            tokens.extend(ids)
            lengths.append(len(ids))
    if sys.byteorder == "big":
        tokens.byteswap()
    return EncodedChunk(tokens=tokens.tobytes(), lengths=lengths, unknown_count=unknown_count, rejected=rejected)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
