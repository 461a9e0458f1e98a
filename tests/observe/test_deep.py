"""What the deep window notes of an operator's arguments is what the probe may replay."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from hotloop.agent.observe.deep import OperatorMode, _describe
from hotloop.agent.replay import recorder


def test_a_sparse_tensor_is_not_described_as_a_dense_one() -> None:
    assert _describe(torch.eye(3)) == ([3, 3], "float", "")
    assert _describe(torch.eye(3).to_sparse()) == ([3, 3], "torch.sparse_coo", "")


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
