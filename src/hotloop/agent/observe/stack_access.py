"""The calling thread -> where another process finds in this one's memory which Python calls the thread is in.

Whoever reads from outside needs no interpreter's lock: its samples fall where the time goes, and not where the lock is
given away. How the interpreter lays out frames, code and strings differs by version. No table of versions is kept: each
offset is found here, by looking for the addresses of known objects in memory that must hold them; what is not found
exactly once is not offered.
"""

from __future__ import annotations

import ctypes
import operator
import os
import re
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType
from typing import Any

from hotloop.core.foreign_memory import prepare_read, read_spans
from hotloop.core.stack_layout import (
    CHUNK_HEADER_BYTES,
    FRAME_BYTES,
    MOST_CHUNK_BYTES,
    STATE_BYTES,
    TAG,
    TEXT_KIND,
    TEXT_LENGTH,
)

from .places import LIBRARIES

_TEXTS = (("hotloop reads", "ascii"), ("é hotloop", "latin-1"), ("ж hotloop", "utf-16-le"), ("😀 hotloop", "utf-32-le"))


def current_thread_state() -> int:
    """Address of the calling thread's state; 0 where the interpreter does not provide it."""
    if sys.implementation.name != "cpython" or sys.version_info < (3, 11):
        return 0
    get_state: Any = ctypes.pythonapi.PyThreadState_Get
    get_state.restype = ctypes.c_void_p
    return int(get_state())


def describe_access(thread_state: int) -> dict[str, Any] | None:
    """Where everything is in this interpreter and in a thread's state; None where it is not found."""
    if not thread_state:
        return None
    try:
        return {
            "thread_state": thread_state,
            "pid": os.getpid(),
            "token": [id(_TOKEN), _TOKEN.hex()],
            "libraries": list(LIBRARIES),
            "folder": os.getcwd(),
            "code_type": id(CodeType),
            "code": _code_layout(),
            "texts": _text_layouts(),
            "calls_nothing": _list_instructions(),
            "bytes": _only(_places(read_spans(os.getpid(), [(id(_BYTES), sys.getsizeof(_BYTES))]), _BYTES)),
            **_frame_layout(),
            **_state_layout(current_thread_state()),
        }
    except (LookupError, OSError, StopIteration):
        return None


_BYTES = b"hotloop reads"
_TOKEN = os.urandom(16)
"""Whoever finds these bytes at their address reads this very process."""


def _only(found: Iterable[Any]) -> Any:
    values = set(found)
    if len(values) != 1:
        raise LookupError(f"{len(values)} places")
    return values.pop()


def _places(memory: bytes, value: bytes, step: int = 1) -> set[int]:
    return {at for at in range(0, len(memory) - len(value) + 1, step) if memory[at : at + len(value)] == value}


def _words(address: int, length: int) -> tuple[int, ...]:
    return struct.unpack(f"={length // 8}Q", read_spans(os.getpid(), [(address, length)]))


def _targets(words: Sequence[int], length: int) -> dict[int, tuple[int, ...]]:
    """The words that each word points to, by the word's offset; none for words that are not addresses."""
    found = {}
    for at, word in enumerate(words):
        if word and not word & TAG:
            try:
                found[8 * at] = _words(word, length)
            except OSError:
                continue
    return found


def _frame_layout() -> dict[str, Any]:
    frame: FrameType | None = sys._getframe()
    caller = None if frame is None else frame.f_back
    try:
        if frame is None or caller is None:
            raise LookupError("no caller")
        code = frame.f_code
        words, there = _words(_interpreter_frame(frame), FRAME_BYTES), _interpreter_frame(caller)
    finally:
        # A frame that refers to itself would keep all its callers', and so what the training has in its variables.
        frame = caller = None
    start = id(code) + CodeType.__basicsize__
    return {
        "frame_code": _only(8 * at for at, word in enumerate(words) if word & ~TAG == id(code)),
        "frame_previous": _only(8 * at for at, word in enumerate(words) if word == there),
        "frame_instruction": _only(
            8 * at for at, word in enumerate(words) if start <= word < start + len(code.co_code)
        ),
        "instructions": CodeType.__basicsize__,
    }


def _state_layout(state: int) -> dict[str, Any]:
    """Ways from the thread's state: to the frame that it is in, by way of a struct on the C stack before 3.13; and to
    the chunk of memory that holds most of its frames."""
    here = _interpreter_frame(sys._getframe())
    look, (seen, *_kept) = prepare_read(os.getpid(), [(state, STATE_BYTES)])
    # While only C functions are called, this function's frame is the thread's current one.
    look()
    words = struct.unpack(f"={STATE_BYTES // 8}Q", seen)
    chunk = _only(
        at
        for at, (_, size, _top) in _targets(words, CHUNK_HEADER_BYTES).items()
        if size <= MOST_CHUNK_BYTES
        and words[at // 8] + CHUNK_HEADER_BYTES <= here < words[at // 8] + size
        and here < words[at // 8 + 1] <= words[at // 8] + size  # followed by how far it is filled
    )
    direct = [8 * at for at, word in enumerate(words) if word == here]
    if direct:
        return {"state_chunk": chunk, "state_frame": [_only(direct)]}
    begin = words[chunk // 8]  # pointers into it point past the last frame
    places = [at for at, word in enumerate(words) if not word & TAG and word and not begin <= word < begin + (1 << 20)]
    reads = [prepare_read(os.getpid(), [(words[at], CHUNK_HEADER_BYTES)]) for at in places]
    calls = [call for call, _ in reads]
    list(map(operator.methodcaller("__call__"), calls))
    found = [(8 * at, 8 * k) for at, (_, (held, *_)) in zip(places, reads, strict=True) for k in _equal(held, here)]
    return {"state_chunk": chunk, "state_frame": list(_only(found))}


def _equal(memory: Any, address: int) -> list[int]:
    return [k for k, word in enumerate(struct.unpack(f"={len(memory) // 8}Q", memory)) if word == address]


def _interpreter_frame(frame: FrameType) -> int:
    """Where the interpreter keeps what a frame object shows: of all that the object points to, what holds its code."""
    words = _words(id(frame), 64)
    targets = _targets(words[2:], FRAME_BYTES)
    return int(
        _only(
            words[2 + at // 8] for at, held in targets.items() if any(word & ~TAG == id(frame.f_code) for word in held)
        )
    )


_CALLS_NOTHING = re.compile(
    r"(LOAD_(FAST|CONST|GLOBAL|DEREF|CLOSURE)|COPY$|SWAP|PRECALL$|PRECALL_(PYFUNC|BOUND)|KW_NAMES|PUSH_NULL|JUMP_FORWARD"
    r"|LIST_APPEND|FOR_ITER_(LIST|TUPLE|RANGE)"
    r"|(BINARY_(OP|SUBSCR)|COMPARE_OP|UNPACK_SEQUENCE)_.*(INT|FLOAT|STR|UNICODE|LIST|TUPLE|DICT)(_JUMP)?$"
    r"|LOAD_ATTR_(INSTANCE_VALUE|SLOT|WITH_HINT)|(PRE)?CALL_(PY_EXACT_ARGS|LEN|LIST_APPEND|NO_KW_L))"
)
"""Instructions that stay in the interpreter, and those that are specialized for its own numbers and containers. Not
those at which a thread waits for the interpreter's lock (RESUME, JUMP_BACKWARD), frees a tensor (STORE_FAST,
RETURN_VALUE) or collects garbage (BUILD_LIST)."""


def _list_instructions() -> list[int]:
    """Numbers of the instructions that call nothing; none where ``dis``, which torch loads, is not there."""
    numbers: dict[str, int] = getattr(sys.modules.get("dis"), "_all_opmap", {})
    return sorted(number for name, number in numbers.items() if _CALLS_NOTHING.match(name) and number < 256)


def _code_layout() -> dict[str, int]:
    functions = (_words, _targets, os.walk, os._Environ.__getitem__)  # a method's name is not its qualified name
    codes = [function.__code__ for function in functions]
    memory = [read_spans(os.getpid(), [(id(code), CodeType.__basicsize__)]) for code in codes]

    def find(form: str, value: Callable[[CodeType], int]) -> int:
        step = struct.calcsize(form)
        held = (_places(own, struct.pack(form, value(code)), step) for code, own in zip(codes, memory, strict=True))
        return int(_only(set.intersection(*held)))

    return {
        "file": find("=Q", lambda code: id(code.co_filename)),
        "name": find("=Q", lambda code: id(code.co_name)),
        "qualified": find("=Q", lambda code: id(code.co_qualname)),
        "lines": find("=Q", lambda code: id(code.co_linetable)),
        "first_line": find("=i", lambda code: code.co_firstlineno),
    }


def _text_layouts() -> dict[str, Any]:
    """Where a string says what kind it is: bits above ``shift`` of the word at ``at``; and [those bits, offset of the
    characters, codec, bytes a character] of each kind."""
    found = []
    for text, codec in _TEXTS:
        memory = read_spans(os.getpid(), [(id(text), sys.getsizeof(text))])
        encoded = text.encode(codec)
        found.append((memory, _only(_places(memory, encoded)), codec, len(encoded) // len(text)))
    at = TEXT_LENGTH + 16  # after the length and the hash
    states = [struct.unpack_from("=I", memory, at)[0] for memory, *_ in found]
    shift = next(shift for shift in range(24) if [state >> shift & 7 for state in states] == [1, 1, 2, 4])
    kinds = [[state >> shift & TEXT_KIND, *rest] for state, (_, *rest) in zip(states, found, strict=True)]
    if len({kind[0] for kind in kinds}) != len(kinds):
        raise LookupError("kinds of strings look alike")
    return {"at": at, "shift": shift, "kinds": kinds}
