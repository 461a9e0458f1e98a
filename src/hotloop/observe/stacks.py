"""Identity of a thread -> the Python calls that it is in, read in one piece while no thread runs Python.

To look at another thread's frame the interpreter makes an object for it, and in CPython 3.11 making an object may start
a garbage collection. That calls back and finalises, by which the other thread may run on and leave the very frame: what
is written then goes to memory that has another use by now, and the process dies of a segmentation fault there or
later. Before 3.11.9 it may also stand still for good, because ``sys._current_frames`` holds a lock meanwhile.

So everything is one chain of C functions, which no thread can come between: collecting is switched off, frames are
read and let go of, collecting is switched on again if it was on. Nobody can see that it was off, no frame outlives the
call, and all lines are of one moment.
"""

from __future__ import annotations

import functools
import gc
import operator
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, chain, compress, islice, repeat, takewhile
from types import CodeType, FrameType
from typing import Any

Call = tuple[CodeType, int]
"""Code and the offset of the instruction that it is at, in bytes (``f_lasti``)."""

_call: Callable[[Any], Any] = getattr(operator, "call", operator.methodcaller("__call__"))
_attribute: Callable[[Any, Any], Any] = getattr
_is_frame = functools.partial(operator.is_not, None)
_code_and_instruction = operator.attrgetter("f_code", "f_lasti")
_module_of = operator.attrgetter("f_globals")


@dataclass(frozen=True, slots=True)
class Stack:
    """``calls`` innermost first, and none of a thread that runs no Python; ``module`` holds the innermost's globals."""

    calls: list[Call]
    module: dict[str, Any]
    threads_count: int


def can_read_stacks() -> bool:
    """False for interpreters without a global lock: there a thread runs on while its frames are read."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def read_stack(thread: int) -> Stack:
    """What the thread is at now, and how many threads have Python calls. Not for the calling thread itself."""
    was_on: list[bool] = []
    innermost: list[dict[int, FrameType]] = []
    frames: list[FrameType] = []
    calls: list[Call] = []
    modules: list[dict[str, Any]] = []
    counts: list[int] = []
    # Lazy: each part begins when the one before it has ended.
    outwards = accumulate(chain(map(dict.get, innermost, (thread,)), repeat("f_back")), _attribute)
    steps = chain(
        map(was_on.append, map(_call, (gc.isenabled,))),
        map(_call, (gc.disable,)),
        map(innermost.append, map(_call, (sys._current_frames,))),
        map(counts.extend, (map(len, innermost),)),
        map(frames.extend, (takewhile(_is_frame, outwards),)),
        map(_call, (innermost.clear,)),
        map(calls.extend, (map(_code_and_instruction, frames),)),
        map(modules.extend, (map(_module_of, islice(frames, 1)),)),
        map(_call, (frames.clear,)),
        map(_call, compress((gc.enable,), was_on)),
    )
    try:
        deque(steps, maxlen=0)
    except BaseException:  # no memory, or somebody's audit hook: what was switched off goes on again
        if True in was_on:
            gc.enable()
        raise
    return Stack(calls, modules[0] if modules else {}, counts[0])


def line_of(code: CodeType, instruction: int) -> int:
    """The line of an instruction; the function's first one where the instruction belongs to none."""
    for start, end, line in code.co_lines():
        if start <= instruction < end:
            return line or code.co_firstlineno
    return code.co_firstlineno
