"""Batches that are nested tensors, which have no shape."""

import pytest
import torch

from hotloop.observe import batches


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_batch_has_a_length_and_nothing_else_is_asked_of_it() -> None:
    nested = torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(5, 2)])
    assert batches.leading_size(nested) == batches.leading_size([nested]) == batches.count_samples({"x": nested}) == 2
    assert batches.leading_shape(nested) == (2, 0)
    assert batches.count_tokens(nested) is None


def test_what_is_no_tensor_with_a_length_has_no_leading_size() -> None:
    assert [batches.leading_size(one) for one in (torch.ones(()), [], None, {"x": torch.ones(2)})] == [None] * 4
