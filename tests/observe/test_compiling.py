"""Calls of compiled graphs are counted where they run: in forwards with gradients, in their backwards, nowhere else."""

from __future__ import annotations

from threading import get_ident
from types import SimpleNamespace
from typing import Any

from hotloop.observe.compiling import BACKWARD, FORWARD, FORWARDS, GraphCalls, wrap_graph_call


def make_session(stack: list[int]) -> Any:
    ticks = iter(range(0, 10_000, 100))
    row = [0] * (FORWARDS + 1)
    recorder = SimpleNamespace(stack=stack, clock=lambda: next(ticks), rows=3, row=row)
    return SimpleNamespace(recorder=recorder, active=get_ident(), graph_calls=GraphCalls())


def call(session: Any, times: int = 1) -> GraphCalls:
    graph = wrap_graph_call(session)(lambda self, inputs: inputs)
    for _ in range(times):
        assert graph(None, [7]) == [7]
    calls: GraphCalls = session.graph_calls
    return calls


def test_calls_in_one_forward_are_one_forward() -> None:
    calls = call(make_session([FORWARD]), times=3)
    assert (calls.calls, calls.ns, calls.forwards) == (3, 300, 1)
    assert calls.backward_calls == 0


def test_calls_in_a_backward_are_told_apart() -> None:
    calls = call(make_session([BACKWARD]), times=2)
    assert (calls.calls, calls.backward_calls, calls.backward_ns) == (0, 2, 200)


def test_calls_elsewhere_and_on_other_threads_are_not_counted() -> None:
    assert call(make_session([])).calls == 0
    session = make_session([FORWARD])
    session.active = 0
    assert call(session).calls == 0
