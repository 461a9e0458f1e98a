"""What the deep window notes of an operator's arguments is what the probe may replay."""

from __future__ import annotations

import torch

from hotloop.observe.deep import _describe


def test_a_sparse_tensor_is_not_described_as_a_dense_one() -> None:
    assert _describe(torch.eye(3)) == ([3, 3], "float", "")
    assert _describe(torch.eye(3).to_sparse()) == ([3, 3], "torch.sparse_coo", "")
