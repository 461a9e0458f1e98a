"""Files -> chunks of about one MiB of text, in an order that only the files determine: a chunk is what one worker
encodes at a time.

Plain files are cut by bytes, and the worker itself reads its part: a line belongs to the chunk in which it begins. The
parent reads files that can only be read from the start (compressed files, tables), and sends the text along.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

from hotloop.core.errors import HotloopError, UsageError

from .text_files import TABLES, TextFile, open_plain, unpack

Block = TypeVar("Block")
CHUNK_BYTES = 1 << 20
"""Small enough that the last chunks leave no process idle for long, large enough that sending it costs nothing."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The start of a chunk: the index of the file, and a byte of a plain file or the number of a streamed file's
    chunk."""

    file: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The lines of a plain file that begin at these bytes."""

    path: str
    form: str
    start_bytes: int
    end_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock:
    """Whole lines of a compressed file; ``start_bytes`` counts unpacked bytes. ``too_long``: the starts of lines above
    the limit."""

    path: str
    form: str
    start_bytes: int
    content: bytes
    too_long: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueBlock:
    """Values of a table's column from row ``start_row`` on; None is a missing value."""

    path: str
    start_row: int
    values: tuple[bytes | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Work for one process. ``following``: the start of the next chunk; ``size_bytes``: stored bytes, for progress."""

    parts: tuple[Piece | LineBlock | ValueBlock, ...]
    following: Cursor
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRules:
    """The rules for reading files. ``whole_files``: a text file is one document."""

    column: str
    whole_files: bool
    limit_bytes: int
    """Longer lines, values and files are left out."""


def plan_chunks(files: Sequence[TextFile], start: Cursor, rules: CutRules) -> Iterator[Chunk]:
    """The chunks from ``start`` on. They follow from the files and ``start`` alone."""
    cursor = start
    while cursor.file < len(files):
        if files[cursor.file].is_streamed:
            yield from _cut_streamed(files[cursor.file], cursor, rules)
            cursor = Cursor(cursor.file + 1)
        else:
            chunk = _cut_plain(files, cursor, rules)
            cursor = chunk.following
            yield chunk


def form_of(file: TextFile, rules: CutRules) -> str:
    """How a part of the file is read: jsonl, text (a line is a document) or whole (the file is one document)."""
    return "whole" if file.form == "text" and rules.whole_files else file.form


def _cut_plain(files: Sequence[TextFile], start: Cursor, rules: CutRules) -> Chunk:
    """Parts of one file, or several small files, up to CHUNK_BYTES."""
    parts: list[Piece] = []
    size_bytes, at = 0, start
    while at.file < len(files) and size_bytes < CHUNK_BYTES and not files[at.file].is_streamed:
        file, form = files[at.file], form_of(files[at.file], rules)
        end = file.size_bytes
        if form != "whole":
            end = min(end, at.position + CHUNK_BYTES - size_bytes)
        parts.append(Piece(path=file.path, form=form, start_bytes=at.position, end_bytes=end))
        size_bytes += end - at.position
        at = Cursor(at.file, end) if end < file.size_bytes else Cursor(at.file + 1)
    return Chunk(parts=tuple(parts), following=at, size_bytes=size_bytes)


def _cut_streamed(file: TextFile, start: Cursor, rules: CutRules) -> Iterator[Chunk]:
    with open_plain(file.path) as stored:
        if file.form in TABLES:
            from .table_values import read_values

            blocks: Iterator[LineBlock | ValueBlock] = (
                ValueBlock(path=file.path, start_row=row, values=values)
                for row, values in read_values(stored, file, rules.column, CHUNK_BYTES)
            )
        else:
            blocks = read_lines(
                unpack(stored, file.packing, file.path), file.path, form_of(file, rules), rules.limit_bytes
            )
        position = done_bytes = 0
        for position, block in enumerate(name_damage(blocks, file.path), 1):
            at_bytes = file.size_bytes if stored.closed else max(done_bytes, min(file.size_bytes, stored.tell()))
            if position > start.position:
                yield Chunk(parts=(block,), following=Cursor(start.file, position), size_bytes=at_bytes - done_bytes)
            done_bytes = at_bytes


def name_damage(blocks: Iterator[Block], path: str) -> Iterator[Block]:
    """The blocks; a truncated or unreadable file is an error with its name."""
    try:
        yield from blocks
    except HotloopError:
        raise
    except Exception as error:  # every compressor raises its own errors
        raise UsageError(f"{path} is damaged: {error or type(error).__name__}; repair it or leave it out") from error


def read_lines(stream: BinaryIO, path: str, form: str, limit_bytes: int) -> Iterator[LineBlock]:
    """Whole lines in blocks of about CHUNK_BYTES, within ``limit_bytes`` of memory."""
    if form == "whole":
        content = _read_up_to(stream, limit_bytes + 1)
        is_long = len(content) > limit_bytes
        yield LineBlock(
            path=path, form=form, start_bytes=0, content=b"" if is_long else content, too_long=(0,) * is_long
        )
        return
    kept, start, skipping = b"", 0, False
    while block := _read_up_to(stream, CHUNK_BYTES):
        if skipping:
            line_end = block.find(b"\n") + 1
            start += line_end or len(block)
            skipping = not line_end
            block = block[line_end:] if line_end else b""
        kept += block
        end = kept.rfind(b"\n") + 1
        if end:
            yield LineBlock(path=path, form=form, start_bytes=start, content=kept[:end])
            kept, start = kept[end:], start + end
        if len(kept) > limit_bytes:
            yield LineBlock(path=path, form=form, start_bytes=start, content=b"", too_long=(start,))
            kept, start, skipping = b"", start + len(kept), True
    if kept:
        yield LineBlock(path=path, form=form, start_bytes=start, content=kept)


def _read_up_to(stream: BinaryIO, size_bytes: int) -> bytes:
    """This many bytes, fewer only at the end."""
    parts: list[bytes] = []
    while size_bytes > 0 and (part := stream.read(size_bytes)):
        parts.append(part)
        size_bytes -= len(part)
    return b"".join(parts)
