"""What torch.compile counts by itself, with the user's lines."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotloop.agent.observe.compiling import compile_facts


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


def told_limit(monkeypatch: pytest.MonkeyPatch, metrics: list[Any], unimplemented: dict[str, int]) -> Any:
    utils = SimpleNamespace(
        counters={"stats": {"unique_graphs": 2}, "unimplemented": unimplemented}, _compilation_metrics=metrics
    )
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    fact = compile_facts(None)
    assert fact is not None
    return fact


def test_a_function_that_reached_the_limit_is_placed_by_its_earlier_compilations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = SimpleNamespace(
        compile_id="0/1", recompile_reason="size 3", co_filename="/x/train.py", co_firstlineno=4, co_name="forward"
    )
    text = "Dynamo recompile limit exceeded\n  Explanation: ..."
    last = SimpleNamespace(compile_id="0/2", recompile_reason="size 4", fail_reason=text, start_time_us=5_000_000)
    monkeypatch.setattr("hotloop.agent.observe.compiling.time", lambda: 12.0)
    fact = told_limit(monkeypatch, [first, last], {text: 1})
    assert fact["limit"] == ["size 4", ("/x/train.py", 4, "forward"), 7.0]
    assert fact["recompiles"] == 1


def test_a_limit_of_which_only_the_counter_is_left_is_known_without_place_and_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert told_limit(monkeypatch, [], {"cache_size_limit reached": 1})["limit"] == ["unknown", None, None]
    assert told_limit(monkeypatch, [], {"something else": 1})["limit"] is None
