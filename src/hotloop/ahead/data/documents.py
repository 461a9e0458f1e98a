"""A chunk of bytes -> its documents as text, and the reason for each document left out (core/tokenizing.REJECTIONS)."""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec

from hotloop.core.errors import UsageError

from .text_chunks import Chunk, CutRules, LineBlock, Piece, ValueBlock
from .text_files import open_plain


class RejectedText(Exception):
    """A document that is left out; the text is a key of REJECTIONS."""


@dataclass(slots=True)
class Rejected:
    """The documents left out: by reason, how many, and the place of the first."""

    counts: dict[str, int] = field(default_factory=dict)
    firsts: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, place: str, count: int = 1) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + count
        self.firsts.setdefault(kind, place)


def read_documents(chunk: Chunk, rules: CutRules, rejected: Rejected) -> Iterator[str]:
    """The chunk's documents in order; those left out are counted in ``rejected``."""
    decode_json = make_json_decoder(rules.column)
    decode: Callable[[bytes], str]
    for part in chunk.parts:
        if isinstance(part, ValueBlock):
            units = ((f"row {row}", value) for row, value in enumerate(part.values, part.start_row))
            decode = decode_text
        else:
            lines = _read_piece(part, rules.limit_bytes) if isinstance(part, Piece) else _read_block(part)
            units = ((f"byte {start}", line) for start, line in lines)
            decode = decode_json if part.form == "jsonl" else decode_text
        for place, unit in units:
            try:
                if unit is None:
                    raise RejectedText("not-text" if isinstance(part, ValueBlock) else "too-long")
                if len(unit) > rules.limit_bytes:
                    raise RejectedText("too-long")
                text = decode(unit)
                if not text or text.isspace():
                    raise RejectedText("empty")
            except RejectedText as reason:
                rejected.add(str(reason), f"{part.path}, {place}")
            else:
                yield text


def decode_text(content: bytes) -> str:
    """The bytes as text. Raises RejectedText."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise RejectedText("bad-utf8") from None


def make_json_decoder(column: str) -> Callable[[bytes], str]:
    """A function from a line to the text of ``column``; it raises RejectedText.

    >>> make_json_decoder("text")(b'{"id": 1, "text": "a b"}')
    'a b'
    """
    line_type = msgspec.defstruct("Line", [("value", str)], rename={"value": column})
    decoder = msgspec.json.Decoder(line_type)

    def decode_line(line: bytes) -> str:
        try:
            return decoder.decode(line).value  # type: ignore[attr-defined, no-any-return]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _decode_odd_line(line, column)

    return decode_line


def find_columns(line: bytes) -> list[str]:
    """The keys of a line of JSON; none if it is not an object."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return [str(key) for key in content] if isinstance(content, dict) else []


def _decode_odd_line(line: bytes, column: str) -> str:
    """For a line that a strict decoder refuses: the text anyway (NaN elsewhere in the line), or the reason."""
    if not line.strip():
        raise RejectedText("empty")
    try:
        content: Any = json.loads(decode_text(line))
    except (ValueError, RecursionError):
        raise RejectedText("corrupt") from None
    if not isinstance(content, dict):
        raise RejectedText("corrupt")
    if column not in content:
        raise RejectedText("no-column")
    value = content[column]
    if not isinstance(value, str):
        raise RejectedText("not-text")
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which no tokenizer can read
        raise RejectedText("bad-utf8") from None
    return value


def _read_block(block: LineBlock) -> Iterator[tuple[int, bytes | None]]:
    yield from ((start, None) for start in block.too_long)
    if block.form == "whole":
        yield 0, block.content
        return
    start = block.start_bytes
    for line in io.BytesIO(block.content):
        yield start, _trim(line, start)
        start += len(line)


def _read_piece(piece: Piece, limit_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """The lines that begin in the piece, with the byte where each begins; None for a line that is too long."""
    try:
        with open_plain(piece.path) as stream:
            if piece.form == "whole":
                content = stream.read(limit_bytes + 1)
                yield 0, None if len(content) > limit_bytes else content.removeprefix(codecs.BOM_UTF8)
                return
            at = piece.start_bytes
            if at:
                stream.seek(at - 1)
                at = _pass_line(stream, at - 1, piece.end_bytes)
            while at < piece.end_bytes and (line := stream.readline(limit_bytes + 2)):
                start, at = at, at + len(line)
                if len(line) > limit_bytes + 1 and not line.endswith(b"\n"):
                    at = _pass_line(stream, at, piece.end_bytes)
                    yield start, None
                else:
                    yield start, _trim(line, start)
    except OSError as error:
        raise UsageError(f"{piece.path} cannot be read: {error}") from error


def _pass_line(stream: BinaryIO, at: int, end: int) -> int:
    """Read to the end of a line, or just past ``end``; returns the byte after it."""
    while at < end and (part := stream.readline(1 << 16)):
        at += len(part)
        if part.endswith(b"\n"):
            break
    return at


def _trim(line: bytes, start: int) -> bytes:
    """The line without its line ending, and without a byte order mark at the start of a file."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    return line.removeprefix(codecs.BOM_UTF8) if start == 0 else line
