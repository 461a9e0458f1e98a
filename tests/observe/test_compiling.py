"""Calls of compiled graphs are counted where they run: in forwards with gradients, in their backwards, nowhere else."""

from __future__ import annotations

import sys
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotloop.observe.compiling import BACKWARD, FORWARD, FORWARDS, GraphCalls, compile_facts, wrap_graph_call


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


def test_a_break_inside_modules_of_torch_is_placed_by_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = [
        SimpleNamespace(filename="/x/train.py", lineno=8, name="forward"),
        SimpleNamespace(filename=torch.__file__, lineno=9, name="item"),
    ]
    utils = SimpleNamespace(
        counters={"stats": {"unique_graphs": 2}, "graph_break": {"Tensor.item(), more": 1, "unknown": 1}},
        graph_break_reasons=[SimpleNamespace(reason="Tensor.item()", user_stack=stack)],
    )
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    fact = compile_facts(None)
    assert fact is not None
    assert fact["break_reasons"] == [["Tensor.item(), more", ("/x/train.py", 8, "forward")], ["unknown", None]]
