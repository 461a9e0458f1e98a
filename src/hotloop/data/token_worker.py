"""What a tokenizing process does: a chunk of text -> the bytes of its tokens."""

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

from .documents import Rejected, read_documents
from .text_chunks import Chunk, CutRules
from .tokenizer_file import forbid_threads, load_tokenizer

BATCH_CHARS = 1 << 19
"""A batch ends here if not before: the library keeps more than 100 bytes for each token of a batch."""
_TYPE_CODES = {"uint16": "H", "int32": "i"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeRules:
    """How documents become tokens. ``end_id`` is appended to each; None appends nothing."""

    cut: CutRules
    token_type: str
    end_id: int | None
    unknown_id: int | None
    special_tokens: bool
    batch_documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChunk:
    """``tokens`` are little-endian in the type of the job; ``lengths`` are int32, one a document."""

    tokens: bytes
    lengths: array[int]
    unknown_count: int
    rejected: Rejected


class ChunkEncoder:
    """A tokenizer and the rules of a job."""

    def __init__(self, content: str, path: str, rules: EncodeRules) -> None:
        self._tokenizer = load_tokenizer(content, path)
        self._rules = rules

    def encode(self, chunk: Chunk) -> EncodedChunk:
        """The chunk's tokens. Raises UsageError where the tokenizer cannot read a text."""
        rules = self._rules
        tokens, lengths, rejected = array(_TYPE_CODES[rules.token_type]), array("i"), Rejected()
        unknown_count = 0
        documents = read_documents(chunk, rules.cut, rejected)
        for batch in _cut_batches(documents, rules.batch_documents):
            for encoding in self._encode_batch(batch, chunk):
                ids = encoding.ids
                if not ids:
                    rejected.add("empty", f"a document of {chunk.parts[0].path}")
                    continue
                if rules.unknown_id is not None:
                    unknown_count += ids.count(rules.unknown_id)
                if rules.end_id is not None:
                    ids.append(rules.end_id)
                tokens.extend(ids)
                lengths.append(len(ids))
        if sys.byteorder == "big":
            tokens.byteswap()
        return EncodedChunk(tokens=tokens.tobytes(), lengths=lengths, unknown_count=unknown_count, rejected=rejected)

    def _encode_batch(self, batch: list[str], chunk: Chunk) -> Any:
        try:
            return self._tokenizer.encode_batch_fast(batch, add_special_tokens=self._rules.special_tokens)
        except Exception as error:  # the library raises plain Exception
            raise UsageError(f"the tokenizer cannot encode a text of {chunk.parts[0].path}: {error}") from error


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


_ENCODER: ChunkEncoder | None = None
"""Of this process: a pool hands its work to plain functions."""


def start_worker(content: str, path: str, rules: EncodeRules) -> None:
    """Prepare this process; it ends with its parent, even one that was killed."""
    global _ENCODER
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forbid_threads()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _ENCODER = ChunkEncoder(content, path, rules)


def encode_chunk(chunk: Chunk) -> EncodedChunk:
    """As ChunkEncoder.encode, in a process that ``start_worker`` prepared."""
    assert _ENCODER is not None
    return _ENCODER.encode(chunk)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
