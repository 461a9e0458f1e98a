"""A pickle of plain values -> those values; no code can run, and nothing costs more than the file's size suggests.

Only the opcodes that build numbers, text, lists, tuples and dicts are known here. None of them imports, calls or fills
an object of a class, so there is nothing to switch off. Memory, time and nesting are bounded, because a pickle of a few
bytes can ask for any amount of each. Why this is not pickle.Unpickler: docs/decisions/013-own-reader-of-pickles.md.
"""

from __future__ import annotations

import mmap
import re
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from hotloop.core.errors import RecordingError


@dataclass(frozen=True, slots=True, kw_only=True)
class PickleLimits:
    """What a pickle may cost to read."""

    memory_bytes: int = 8 << 30
    """Estimated size of the objects that it builds."""
    stack: int = 1 << 20
    marks: int = 200
    """Containers that may be open at once; a memory snapshot needs 10."""
    integer_bytes: int = 16
    """A longer integer is no size and no address."""
    seconds: float = 600.0


def load_plain(data: mmap.mmap, source: str, limits: PickleLimits) -> object:
    """The value of the pickle in ``data``. Raises RecordingError, in one line, which begins with ``source``."""
    try:
        return _Reader(data, limits).read()
    except _Refused as refusal:
        raise RecordingError(f"{source} was not read: {refusal}.") from None
    except (IndexError, KeyError, struct.error):
        raise RecordingError(f"{source} is not a complete pickle: it is damaged or truncated.") from None
    except (UnicodeDecodeError, TypeError, ValueError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise RecordingError(f"{source} is not a pickle of plain values: {first_line}.") from None


class _Refused(Exception):
    """Why a pickle is not read."""


_STOP, _MEMOIZE, _BINGET, _LONG_BINGET = 0x2E, 0x94, 0x68, 0x6A
_CODE_OPCODES = {
    0x63: "GLOBAL",
    0x93: "STACK_GLOBAL",
    0x52: "REDUCE",
    0x62: "BUILD",
    0x69: "INST",
    0x6F: "OBJ",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x50: "PERSID",
    0x51: "BINPERSID",
}
"""Opcodes that name, call or fill an object of a class. Numbers as in Python's pickletools."""

_SHORT_GETS = re.compile(rb"(?:h.){2,4096}", re.DOTALL)
_LONG_GETS = re.compile(rb"(?:j....){2,4096}", re.DOTALL)
_GET_INDEX = np.dtype([("opcode", "u1"), ("index", "<u4")])
_CHECK_EVERY = 1 << 12
"""Opcodes between two looks at the clock; one opcode's run of gets has up to 4,096 of them."""
_CONTAINER_BYTES = 64
_ITEM_BYTES = 8
_ENTRY_BYTES = 60
_OBJECT_BYTES = 40
_U32, _I32, _U64, _F64 = (struct.Struct(form).unpack_from for form in ("<I", "<i", "<Q", ">d"))


class _Reader:
    """One pickle while it is read. A handler gets the place behind its opcode and returns that of the next opcode."""

    __slots__ = ("_cost_bytes", "_data", "_limits", "_marks", "_memo", "_stack")

    def __init__(self, data: mmap.mmap, limits: PickleLimits) -> None:
        self._data = data
        self._limits = limits
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._cost_bytes = 0

    def read(self) -> object:
        """The one value on the stack at STOP."""
        data, stack, memo, limits = self._data, self._stack, self._memo, self._limits
        deadline = time.monotonic() + limits.seconds
        countdown = at = 0
        handlers = _HANDLERS
        while True:
            countdown -= 1
            if countdown <= 0:
                countdown = _CHECK_EVERY
                if time.monotonic() > deadline:
                    raise _Refused(f"reading it took longer than {limits.seconds:g} s")
                if len(memo) > len(data):
                    raise _Refused("it memoises more values than it has bytes")
            if self._cost_bytes > limits.memory_bytes:
                raise _Refused(f"it needs more than {limits.memory_bytes >> 20} MiB of memory")
            if len(stack) > limits.stack:
                raise _Refused(f"its stack exceeds {limits.stack} values")
            opcode = data[at]
            if opcode == _MEMOIZE:
                memo[len(memo)] = stack[-1]
                self._cost_bytes += _ENTRY_BYTES
                at += 1
                continue
            if opcode == _STOP:
                break
            at = (handlers.get(opcode) or self._refuse(opcode, at))(self, at + 1)
        if len(stack) != 1 or self._marks:
            raise _Refused("it ends in the middle of a value")
        return stack[0]

    def _refuse(self, opcode: int, at: int) -> NoReturn:
        if opcode in _CODE_OPCODES:
            raise _Refused(
                f"at byte {at} it contains an instruction that can run code ({_CODE_OPCODES[opcode]}), which "
                "memory snapshots never do; do not load this file with pickle"
            )
        raise _Refused(f"at byte {at} it contains the opcode 0x{opcode:02x}, which memory snapshots do not have")

    def _take(self, at: int, length: int) -> bytes:
        left = len(self._data) - at
        if length > left:
            raise _Refused(f"at byte {at} it announces {length} bytes, but only {left} follow")
        self._cost_bytes += length + _OBJECT_BYTES
        return self._data[at : at + length]

    def _pop_mark(self) -> list[Any]:
        start = self._marks.pop()
        if start > len(self._stack):
            raise _Refused("its marks and its stack are inconsistent")
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _fill(self, keys_and_values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(keys_and_values) % 2:
            raise _Refused("it adds keys to something that is not a dict")
        keys = keys_and_values[::2]
        # Text hashes differ from run to run; numbers and tuples could be chosen to collide, which makes a dict slow.
        if not all(type(key) is str for key in keys):
            raise _Refused("it has a dict key that is not text, which memory snapshots do not have")
        target.update(zip(keys, keys_and_values[1::2], strict=True))
        self._cost_bytes += len(keys) * _ENTRY_BYTES

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise _Refused("it appends to something that is not a list")
        target.extend(items)
        self._cost_bytes += len(items) * _ITEM_BYTES

    # Values that were remembered

    def binget(self, at: int) -> int:
        run = _SHORT_GETS.match(self._data, at - 1) if self._data[at + 1] == _BINGET else None
        if run is None:
            self._stack.append(self._memo[self._data[at]])
            return at + 1
        self._stack.extend(map(self._memo.__getitem__, run.group()[1::2]))
        return run.end()

    def long_binget(self, at: int) -> int:
        run = _LONG_GETS.match(self._data, at - 1) if self._data[at + 4] == _LONG_BINGET else None
        if run is None:
            self._stack.append(self._memo[_U32(self._data, at)[0]])
            return at + 4
        indices = np.frombuffer(run.group(), dtype=_GET_INDEX)["index"].tolist()
        self._stack.extend(map(self._memo.__getitem__, indices))
        return run.end()

    def _remember(self, index: int) -> None:
        self._memo[index] = self._stack[-1]
        self._cost_bytes += _ENTRY_BYTES

    def binput(self, at: int) -> int:
        self._remember(self._data[at])
        return at + 1

    def long_binput(self, at: int) -> int:
        self._remember(_U32(self._data, at)[0])
        return at + 4

    # Numbers and constants

    def binint1(self, at: int) -> int:
        self._stack.append(self._data[at])
        return at + 1

    def binint2(self, at: int) -> int:
        self._stack.append(self._data[at] | self._data[at + 1] << 8)
        return at + 2

    def binint(self, at: int) -> int:
        self._stack.append(_I32(self._data, at)[0])
        self._cost_bytes += _OBJECT_BYTES
        return at + 4

    def long1(self, at: int) -> int:
        length = self._data[at]
        if length > self._limits.integer_bytes:
            raise _Refused(f"it has an integer of {length} bytes, which is neither a size nor an address")
        self._stack.append(int.from_bytes(self._take(at + 1, length), "little", signed=True))
        return at + 1 + length

    def binfloat(self, at: int) -> int:
        self._stack.append(_F64(self._take(at, 8))[0])
        return at + 8

    def none(self, at: int) -> int:
        self._stack.append(None)
        return at

    def newtrue(self, at: int) -> int:
        self._stack.append(True)
        return at

    def newfalse(self, at: int) -> int:
        self._stack.append(False)
        return at

    # Text and bytes

    def _text(self, at: int, length: int) -> int:
        self._stack.append(str(self._take(at, length), "utf-8", "surrogatepass"))
        return at + length

    def short_binunicode(self, at: int) -> int:
        return self._text(at + 1, self._data[at])

    def binunicode(self, at: int) -> int:
        return self._text(at + 4, _U32(self._data, at)[0])

    def binunicode8(self, at: int) -> int:
        return self._text(at + 8, _U64(self._data, at)[0])

    def _bytes(self, at: int, length: int) -> int:
        self._stack.append(self._take(at, length))
        return at + length

    def short_binbytes(self, at: int) -> int:
        return self._bytes(at + 1, self._data[at])

    def binbytes(self, at: int) -> int:
        return self._bytes(at + 4, _U32(self._data, at)[0])

    # Containers

    def mark(self, at: int) -> int:
        if len(self._marks) >= self._limits.marks:
            raise _Refused(f"it nests more than {self._limits.marks} containers")
        self._marks.append(len(self._stack))
        return at

    def empty_dict(self, at: int) -> int:
        self._stack.append({})
        self._cost_bytes += _CONTAINER_BYTES
        return at

    def setitems(self, at: int) -> int:
        self._fill(self._pop_mark())
        return at

    def setitem(self, at: int) -> int:
        value, key = self._stack.pop(), self._stack.pop()
        self._fill([key, value])
        return at

    def empty_list(self, at: int) -> int:
        self._stack.append([])
        self._cost_bytes += _CONTAINER_BYTES
        return at

    def appends(self, at: int) -> int:
        self._extend(self._pop_mark())
        return at

    def append(self, at: int) -> int:
        self._extend([self._stack.pop()])
        return at

    def empty_tuple(self, at: int) -> int:
        self._stack.append(())
        return at

    def _tuple(self, items: list[Any]) -> None:
        self._stack.append(tuple(items))
        self._cost_bytes += _CONTAINER_BYTES + len(items) * _ITEM_BYTES

    def tuple1(self, at: int) -> int:
        self._tuple([self._stack.pop()])
        return at

    def tuple2(self, at: int) -> int:
        second, first = self._stack.pop(), self._stack.pop()
        self._tuple([first, second])
        return at

    def tuple3(self, at: int) -> int:
        third, second, first = self._stack.pop(), self._stack.pop(), self._stack.pop()
        self._tuple([first, second, third])
        return at

    def long_tuple(self, at: int) -> int:
        self._tuple(self._pop_mark())
        return at

    # Framing

    def proto(self, at: int) -> int:
        if self._data[at] > 5:
            raise _Refused(f"it uses pickle protocol {self._data[at]}, but 5 is the newest supported")
        return at + 1

    def frame(self, at: int) -> int:
        return at + 8


_HANDLERS: dict[int, Callable[[_Reader, int], int]] = {
    _BINGET: _Reader.binget,
    _LONG_BINGET: _Reader.long_binget,
    0x71: _Reader.binput,
    0x72: _Reader.long_binput,
    0x4B: _Reader.binint1,
    0x4D: _Reader.binint2,
    0x4A: _Reader.binint,
    0x8A: _Reader.long1,
    0x47: _Reader.binfloat,
    0x4E: _Reader.none,
    0x88: _Reader.newtrue,
    0x89: _Reader.newfalse,
    0x8C: _Reader.short_binunicode,
    0x58: _Reader.binunicode,
    0x8D: _Reader.binunicode8,
    0x43: _Reader.short_binbytes,
    0x42: _Reader.binbytes,
    0x28: _Reader.mark,
    0x7D: _Reader.empty_dict,
    0x75: _Reader.setitems,
    0x73: _Reader.setitem,
    0x5D: _Reader.empty_list,
    0x65: _Reader.appends,
    0x61: _Reader.append,
    0x29: _Reader.empty_tuple,
    0x85: _Reader.tuple1,
    0x86: _Reader.tuple2,
    0x87: _Reader.tuple3,
    0x74: _Reader.long_tuple,
    0x80: _Reader.proto,
    0x95: _Reader.frame,
}
"""All opcodes that are read, but for MEMOIZE and STOP, which the loop knows."""
