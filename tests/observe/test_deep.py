"""What the deep window notes of an operator's arguments is what the probe may replay."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from hotloop.observe.deep import MOST_FLOW_CALLS, Flow, OperatorMode, _describe
from hotloop.replay import recorder


def test_a_sparse_tensor_is_not_described_as_a_dense_one() -> None:
    assert _describe(torch.eye(3)) == ([3, 3], "float", "")
    assert _describe(torch.eye(3).to_sparse()) == ([3, 3], "torch.sparse_coo", "")


def test_a_view_is_the_buffer_it_looks_at_and_a_result_is_a_new_one() -> None:
    flow, source = Flow(), torch.ones(4)
    result = source * 2
    flow.note(0, (source, 2), result)
    flow.note(1, (result.view(2, 2),), torch.ones(2))
    assert flow.calls == [[0, [0], [1]], [1, [1], [2]]]
    assert flow.nbytes == [16, 16, 8]
    assert flow.known


def test_what_is_written_in_place_is_a_new_buffer() -> None:
    flow, source = Flow(), torch.ones(4)
    flow.note(0, (source,), source.add_(1))
    flow.note(1, ([source],), torch.ones(1))
    assert flow.calls == [[0, [0], [1]], [1, [1], [2]]]


def test_a_flow_is_not_told_when_a_tensor_has_no_plain_memory_or_calls_are_too_many() -> None:
    sparse, long = Flow(), Flow()
    sparse.note(0, (torch.eye(2).to_sparse(),), torch.ones(1))
    for _ in range(MOST_FLOW_CALLS + 1):
        long.note(0, (), ())
    assert not sparse.known
    assert not long.known


def test_on_an_accelerator_only_products_are_noted() -> None:
    found = {}
    layer, x = torch.nn.Linear(4, 8), torch.randn(2, 4)
    for products_only in (False, True):
        mode = OperatorMode(SimpleNamespace(stack=[recorder.FORWARD]), products_only=products_only)  # type: ignore[arg-type]
        with mode:
            layer(x).relu().sum()
        found[products_only] = mode
    assert [op["name"] for op in found[True].found.values()] == ["aten::addmm"]
    assert (found[True].operators, found[True].passed) == (1, 4), "t, relu, sum and the ones of its shape"
    assert {"aten::addmm", "aten::relu", "aten::sum"} <= {op["name"] for op in found[False].found.values()}
    assert found[False].passed == 0
