"""TokenizeReport: what `hotloop tokenize` wrote and what it left out; the contract hotloop.tokenize/1."""

from __future__ import annotations

from dataclasses import dataclass

TOKENIZE_SCHEMA = "hotloop.tokenize/1"
"""Version of the contract. Fields are added, never changed."""

REJECTIONS = {
    "corrupt": "not a JSON object",
    "bad-utf8": "not valid UTF-8",
    "no-column": "without the column",
    "not-text": "with a value that is not text",
    "too-long": "above --document-limit",
    "empty": "empty",
}
"""Why a document is left out, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Documents that were left out for one reason. ``first`` is the place of the first of them."""

    kind: str
    count: int
    first: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShard:
    """One pair NAME.bin and NAME.idx. ``sha256`` is that of the .bin file, ``idx_sha256`` that of the index."""

    name: str
    documents_count: int
    tokens_count: int
    bin_bytes: int
    sha256: str
    idx_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeReport:
    """The content of a folder of tokens, and how this run made it.

    ``unknown_count`` counts tokens that replace text outside the vocabulary; None if the tokenizer has no such token.
    ``wall_s`` and ``run_tokens_count`` belong to this run, everything else to the entire folder.
    """

    tool_version: str
    folder: str
    token_type: str
    vocabulary_count: int
    sources_count: int
    source_bytes: int
    documents_count: int
    tokens_count: int
    unknown_count: int | None
    rejections: tuple[Rejection, ...]
    shards: tuple[TokenShard, ...]
    processes_count: int
    wall_s: float
    run_tokens_count: int
    was_resumed: bool
    was_complete: bool
    next: str | None = None
