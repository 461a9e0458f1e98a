"""Compiled graphs -> the time of their calls, and of compiling them, in the current row."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any

from hotloop.core.recording import FIELD

from .guard import guarded
from .session import Session

FORWARDS = FIELD["forwards"]
FORWARD = FIELD["forward_ns"]
BACKWARD = FIELD["backward_ns"]


def wrap_graph_call(session: Session) -> Callable[[Any], Any]:
    """Time the calls of one compiled graph; torch.compile runs it with its own tracing off."""

    def wrap(original: Any) -> Any:
        recorder = session.recorder

        @functools.wraps(original)
        def __call__(self: Any, inputs: Any) -> Any:
            # Of the training thread alone: active is 0 while hotloop observes nothing.
            if session.active != get_ident():
                return original(self, inputs)
            stack, calls = recorder.stack, session.graph_calls
            is_backward = BACKWARD in stack
            if not is_backward and FORWARD not in stack:
                return original(self, inputs)
            started_ns = recorder.clock()
            try:
                return original(self, inputs)
            finally:
                ns = recorder.clock() - started_ns
                if is_backward:
                    calls.backward_calls += 1
                    calls.backward_ns += ns
                else:
                    calls.count((recorder.rows, recorder.row[FORWARDS]), ns)

        return __call__

    return wrap


@guarded
def watch_compilation(session: Session) -> None:
    """Ask torch.compile to tell when it starts and ends compiling; needs torch._dynamo.callback to be loaded."""
    handler = sys.modules["torch._dynamo.callback"].callback_handler
    handler.register_start_callback(lambda *_: session.compile_began())
    handler.register_end_callback(lambda *_: session.compile_ended())
