"""A process that reported where its frames are -> the Python calls that its training thread is in, read from outside.

Nothing in that process is stopped or asked: memory is copied while it runs on. What was read is checked: every code
must be one by its type, and an inconsistent moment is read again.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hotloop.core.foreign_memory import Span, read_spans
from hotloop.core.stack_layout import (
    CHUNK_HEADER_BYTES,
    FRAME_BYTES,
    INTERPRETED,
    MOST_CHUNK_BYTES,
    STATE_BYTES,
    TAG,
    TEXT_KIND,
    TEXT_LENGTH,
    Place,
    is_users,
)

MOST_FRAMES = 512
MOST_USER_FRAMES = 12
MOST_TEXT_BYTES = 1 << 16
MOST_CODES = 1_000
"""Known at a time; the kernel reads up to 1,024 places in one call."""
LINKS_BYTES = 24
MOST_THREADS = 8
"""On each side of the thread that trains."""
TRIES = 6
"""Copies of a moment until its parts fit. Before Python 3.13 the way to the innermost frame changes whenever C code
calls Python; the last copy is taken as it is, and dropped if it leads to no code."""
_CHUNK_STEP = 4096
IMPORTING = "importlib:import_module"
"""The leaf of all that is imported below a user's line, also where a library imports parts of itself when used."""

MOST_CALLS, MOST_STATES = 200, 256
"""Calls of a thread, and threads, where all are asked for."""

Sample = tuple[tuple[Place, ...], str]
"""User frames, outermost first, and 'module:function' of the innermost frame of any kind."""


class PythonCall(NamedTuple):
    """A Python call that a thread is in; ``module`` as it is imported, ``__main__`` for the user's own."""

    file: str
    line: int
    function: str
    module: str
    is_users: bool


class Inconsistent(Exception):
    """The memory does not hold what it should: it changed while it was read, or it belongs to something else."""


@dataclass(frozen=True, slots=True)
class _Code:
    identity: bytes
    """The part of the code's memory that points to its file, name and lines."""
    file: str
    name: str
    first_line: int
    starts: tuple[int, ...]
    lines: tuple[int, ...]
    is_users: bool
    module: str

    def place(self, instruction: int) -> Place:
        at = bisect_right(self.starts, instruction) - 1
        return (self.file, (self.lines[at] if at >= 0 else 0) or self.first_line, self.name)


class StackReader:
    """Reads one process, by what ``describe_access`` says; KeyError, TypeError or ValueError for anything else."""

    def __init__(self, access: Mapping[str, Any]) -> None:
        self.pid = int(access["pid"])
        self._token = bytes.fromhex(access["token"][1])
        self._libraries = tuple(map(str, access["libraries"]))
        self._folder = str(access["folder"])
        self._code_type = int(access["code_type"])
        self._code_layout = {name: int(at) for name, at in access["code"].items()}
        self._texts = access["texts"]
        self._bytes_at = int(access["bytes"])
        self._frame_at = [int(at) for at in access["state_frame"]]
        self._chunk_at = int(access["state_chunk"])
        self._frame_fields = tuple(int(access[f"frame_{name}"]) for name in ("code", "previous", "instruction"))
        self._instructions = int(access["instructions"])
        self._calls_nothing = frozenset(map(int, access["calls_nothing"]))
        pointers = [self._code_layout[name] for name in ("file", "name", "lines")]
        self._identity_span = min(pointers), max(pointers) + 8 - min(pointers)
        self._fixed: tuple[Span, ...] = (
            (int(access["token"][0]) + self._bytes_at, len(self._token)),
            (int(access["thread_state"]), STATE_BYTES),
        )
        self._inner = self._chunk = self._chunk_bytes = 0
        self._codes: dict[int, _Code | None] = {}

    def check_codes(self) -> None:
        """Forget codes that are known by an address where another code is by now."""
        known = [(address, code.identity) for address, code in self._codes.items() if code is not None]
        begin, length = self._identity_span
        try:
            memory = read_spans(self.pid, [(address + begin, length) for address, _ in known[:MOST_CODES]])
        except OSError:
            memory = b""
        if len(known) > MOST_CODES or memory != b"".join(identity for _, identity in known):
            self._codes.clear()

    def read(self) -> Sample:
        """The calls that the thread is in now.

        Raises OSError when the process cannot be read, Inconsistent when what was read makes no sense.
        """
        for tries_left in range(TRIES - 1, -1, -1):
            try:
                moment = self._copy()
            except OSError:  # where something lay last time there may be no memory any more
                self._inner = self._chunk = 0
                moment = self._copy()
            fits = self._follow(moment)
            if not fits and tries_left:
                continue
            if not moment.chunk:
                break
            try:
                return self._walk(moment)
            except OSError as error:
                if error.errno == errno.EFAULT:
                    raise Inconsistent("a frame no longer exists") from None
                raise
        raise Inconsistent("the frames change too fast")

    def read_others(self) -> list[Sample]:
        """The calls that the other threads that run Python are in now, where they can be read; not at one moment."""
        own = self._fixed[1][0]
        samples = []
        for state in self._neighbors(own, 0, 8) + self._neighbors(own, 8, 0):
            try:
                samples.append(self._walk(self._moment_of(state)))
            except (OSError, Inconsistent):
                continue
        return samples

    def list_states(self, head: int) -> list[int]:
        """States of all threads from the list's head on."""
        return [head, *self._neighbors(head, 8, 0, MOST_STATES)]

    def read_calls(self, state: int) -> tuple[PythonCall, ...]:
        """All Python calls that a thread is in, innermost first; none where it runs no Python.

        Raises OSError when the process cannot be read, Inconsistent when the frames changed meanwhile.
        """
        code_at, previous_at, instruction_at = self._frame_fields
        try:
            frame = self._moment_of(state).frame
        except Inconsistent:
            return ()
        calls: list[PythonCall] = []
        for _ in range(MOST_CALLS):
            if not frame:
                break
            held = read_spans(self.pid, [(frame, FRAME_BYTES)])
            address = _word(held, code_at) & ~TAG
            code = self._code(address)
            if code is not None:
                place = code.place(_word(held, instruction_at) - address - self._instructions)
                calls.append(PythonCall(*place, code.module, code.is_users))
            frame = _word(held, previous_at) & ~TAG
        return tuple(calls)

    def _neighbors(self, state: int, link: int, back: int, most: int = MOST_THREADS) -> list[int]:
        """States of threads along the interpreter's list, which each state begins with: the one before, the one after,
        and the interpreter. Where these do not point back, it is not such a list."""
        found: list[int] = []
        words = read_spans(self.pid, [(state, LINKS_BYTES)])
        while len(found) < most and (there := _word(words, link)):
            linked = read_spans(self.pid, [(there, LINKS_BYTES)])
            if _word(linked, back) != state or _word(linked, 16) != _word(words, 16):
                raise Inconsistent("no list of threads")
            found.append(there)
            state, words = there, linked
        return found

    def _moment_of(self, state: int) -> _Moment:
        frame = inner_at = _word(read_spans(self.pid, [(state + self._frame_at[0], 8)]), 0)
        if len(self._frame_at) > 1:
            frame = _word(read_spans(self.pid, [(inner_at + self._frame_at[1], 8)]), 0)
        if not frame:
            raise Inconsistent("a thread without a frame")
        return _Moment(inner_at=inner_at, frame=frame, chunk_at=0, chunk_end=0, chunk=b"")

    def _copy(self) -> _Moment:
        """All that a sample needs in one copy, from the addresses of last time."""
        spans = [*self._fixed]
        if self._inner:
            spans.append((self._inner, CHUNK_HEADER_BYTES))
        spans.append((self._chunk, self._chunk_bytes if self._chunk else 0))
        memory = read_spans(self.pid, [span for span in spans if span[1]])
        at, parts = 0, []
        for _, length in spans:
            parts.append(memory[at : at + length])
            at += length
        token, state, *inner, chunk = parts
        if token != self._token:
            raise Inconsistent("another process has this number")
        frame = inner_at = _word(state, self._frame_at[0])
        if len(self._frame_at) > 1:
            frame = _word(inner[0], self._frame_at[1]) if inner and inner_at == self._inner else 0
        chunk_at, chunk_end = struct.unpack_from("=QQ", state, self._chunk_at)
        return _Moment(
            inner_at=inner_at,
            frame=frame,
            chunk_at=chunk_at,
            chunk_end=chunk_end,
            chunk=chunk if chunk_at == self._chunk else b"",
        )

    def _follow(self, moment: _Moment) -> bool:
        """Remember where everything is; whether it was there already when it was copied."""
        chunk_bytes = moment.chunk_end - moment.chunk_at
        if not 0 <= chunk_bytes <= MOST_CHUNK_BYTES:
            raise Inconsistent("no chunk of frames")
        fits = bool(moment.frame and chunk_bytes <= len(moment.chunk))
        if len(self._frame_at) > 1:
            self._inner = moment.inner_at
        self._chunk = moment.chunk_at
        self._chunk_bytes = -(-(chunk_bytes + 1) // _CHUNK_STEP) * _CHUNK_STEP
        return fits

    def _walk(self, moment: _Moment) -> tuple[tuple[Place, ...], str]:
        """User frames, outermost first, and what the innermost frame of any kind is: where the innermost user frame
        leads to an import, however deep, the import."""
        frame, chunk, start = moment.frame, moment.chunk, moment.chunk_at
        if not frame:  # the way to it changed in all tries
            frame = _word(read_spans(self.pid, [(moment.inner_at, CHUNK_HEADER_BYTES)]), self._frame_at[1])
        code_at, previous_at, instruction_at = self._frame_fields
        places: list[Place] = []
        leaf, seen = "", 0
        while frame and len(places) < MOST_USER_FRAMES:
            seen += 1
            if seen > MOST_FRAMES:
                raise Inconsistent("the frames have no end")
            at = frame - start
            inside = CHUNK_HEADER_BYTES <= at <= len(chunk) - FRAME_BYTES
            held, at = (chunk, at) if inside else (read_spans(self.pid, [(frame, FRAME_BYTES)]), 0)
            address = _word(held, at + code_at) & ~TAG
            code = self._code(address)
            if code is None and inside:
                raise Inconsistent("a frame without code")
            if code is not None:
                instruction = _word(held, at + instruction_at)
                if not leaf:
                    leaf = f"{code.module}:{code.name}"
                    if code.is_users and self._opcode(instruction) in self._calls_nothing:
                        leaf += INTERPRETED
                if not places and code.file.startswith("<frozen importlib"):
                    leaf = IMPORTING
                if code.is_users:
                    places.append(code.place(instruction - address - self._instructions))
            frame = _word(held, at + previous_at) & ~TAG
        places.reverse()
        return tuple(places), leaf

    def _opcode(self, instruction: int) -> int:
        return read_spans(self.pid, [(instruction, 1)])[0]

    def _code(self, address: int) -> _Code | None:
        """The code at an address; None when something else is there."""
        if address not in self._codes:
            self._codes[address] = self._read_code(address)
        return self._codes[address]

    def _read_code(self, address: int) -> _Code | None:
        memory = read_spans(self.pid, [(address, self._instructions)])
        if _word(memory, 8) != self._code_type:
            return None
        layout = self._code_layout
        file, name = (self._text(_word(memory, layout[key])) for key in ("file", "name"))
        if name.startswith("<"):  # a comprehension is a part of the function that it is written in
            parts = self._text(_word(memory, layout["qualified"])).split(".")
            name = next((part for part in reversed(parts) if not part.startswith("<")), name)
        lines_at = _word(memory, layout["lines"])
        (length,) = struct.unpack("=Q", read_spans(self.pid, [(lines_at + TEXT_LENGTH, 8)]))
        table = self._read_bytes(lines_at + self._bytes_at, length)
        (first_line,) = struct.unpack_from("=i", memory, layout["first_line"])
        starts, lines = read_line_table(table, first_line)
        path = os.path.normpath(os.path.join(self._folder, file))
        begin, identity_bytes = self._identity_span
        return _Code(
            identity=memory[begin : begin + identity_bytes],
            file=file,
            name=name,
            first_line=first_line,
            starts=starts,
            lines=lines,
            is_users=is_users(file, path, self._libraries),
            module=module_of(path, self._libraries),
        )

    def _text(self, address: int) -> str:
        layout = self._texts
        head = read_spans(self.pid, [(address, layout["at"] + 8)])
        (length,) = struct.unpack_from("=Q", head, TEXT_LENGTH)
        (state,) = struct.unpack_from("=I", head, layout["at"])
        for kind, offset, codec, width in layout["kinds"]:
            if kind == state >> layout["shift"] & TEXT_KIND:
                return self._read_bytes(address + offset, length * width).decode(codec, "replace")
        raise Inconsistent("no string")

    def _read_bytes(self, address: int, length: int) -> bytes:
        if not 0 <= length <= MOST_TEXT_BYTES:
            raise Inconsistent("no such length")
        return read_spans(self.pid, [(address, length)]) if length else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """Addresses as they were, and the contents where the last moment's addresses pointed; empty where these differ."""

    inner_at: int
    frame: int
    chunk_at: int
    chunk_end: int
    chunk: bytes


def _word(memory: bytes, at: int) -> int:
    return int.from_bytes(memory[at : at + 8], sys.byteorder)


def module_of(path: str, libraries: tuple[str, ...]) -> str:
    """The dotted name that a library's file is imported by; ``__main__`` for the user's own.

    >>> module_of("/v/lib/json/encoder.py", ("/v/lib/",)), module_of("/v/lib/json/__init__.py", ("/v/", "/v/lib/"))
    ('json.encoder', 'json')
    >>> module_of("/home/train.py", ("/v/lib/",)), module_of("/w/site-packages/a/b.py", ("/v/lib/",))
    ('__main__', 'a.b')
    """
    inside = [folder for folder in libraries if path.startswith(folder)]
    for name in ("site-packages", "dist-packages"):  # also of another environment, which PYTHONPATH names
        before, folder, _ = path.rpartition(f"{os.sep}{name}{os.sep}")
        if folder:
            inside.append(before + folder)
    if not inside:
        return "__main__"
    name = path.removeprefix(max(inside, key=len)).removesuffix(".py").removesuffix(f"{os.sep}__init__")
    return name.replace(os.sep, ".")


def read_line_table(table: bytes, first_line: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets of instructions in bytes, ascending, and the line that begins at each; 0 where there is none.

    The form is that of CPython from 3.11 on (Objects/locations.md).
    """
    starts, lines = [], []
    at, offset, line = 0, 0, first_line
    while at < len(table):
        kind, units = table[at] >> 3 & 15, (table[at] & 7) + 1
        at += 1
        shown = True
        if kind == 15:
            shown = False
        elif kind in (13, 14):
            delta, at = _read_varint(table, at)
            line += -(delta >> 1) if delta & 1 else delta >> 1
            for _ in range(3 if kind == 14 else 0):
                _, at = _read_varint(table, at)
        elif kind >= 10:
            line += kind - 10
            at += 2
        else:
            at += 1
        starts.append(offset)
        lines.append(line if shown else 0)
        offset += 2 * units
    return tuple(starts), tuple(lines)


def _read_varint(table: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(table):
            raise Inconsistent("no table of lines")
        byte = table[at]
        at += 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            return value, at
