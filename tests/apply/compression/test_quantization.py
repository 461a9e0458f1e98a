"""Integers with a scale per block: what rounding may change."""

import pytest
import torch

from hotloop.change.apply.compression.quantization import (
    BLOCK_COUNT,
    PIECE_COUNT,
    blocks_of,
    dequantize,
    quantize,
)

SIZES = (0, 1, 7, BLOCK_COUNT, BLOCK_COUNT + 1, PIECE_COUNT + 3 * BLOCK_COUNT + 5)


def there_and_back(values: torch.Tensor, levels: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What comes back, what rounding took away, and the scales."""
    rest = values.clone()
    codes = torch.empty(values.numel(), dtype=torch.int8)
    scales = torch.empty(blocks_of(values.numel()), dtype=values.dtype)
    quantize(rest, codes, scales, levels)
    again = torch.empty_like(values)
    dequantize(codes, scales, again)
    return again, rest, scales


@pytest.mark.parametrize("levels", [1, 127])
@pytest.mark.parametrize("size", SIZES)
def test_no_element_is_off_by_more_than_half_a_scale(size: int, levels: int) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(size))
    again, rest, scales = there_and_back(values, levels)
    most = 0.5001 * scales.repeat_interleave(BLOCK_COUNT)[:size]
    assert ((again - values).abs() <= most).all()
    torch.testing.assert_close(again + rest, values, rtol=1e-5, atol=1e-6)


def test_the_smallest_numbers_become_zero_and_are_kept_as_the_rest() -> None:
    values = torch.full((10,), 1e-42)
    again, rest, _ = there_and_back(values, 127)
    assert not again.any()
    assert torch.equal(rest, values)
