"""Tensors there and back: any shape and floating dtype, and the ratio and error that are reported."""

import pytest
import torch

from hotloop import GradientCompressor
from hotloop.change.apply.compression.compressor import DTYPES
from hotloop.change.apply.compression.selection import EXACT_COUNT

SHAPES = ((), (0,), (3, 0, 2), (1,), (7,), (5, 1, 3), (33, 70))
COMPRESSOR = GradientCompressor()


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def error_of(tensor: torch.Tensor, again: torch.Tensor) -> float:
    lost = (tensor.double() - again.double()).norm()
    return float(lost / tensor.double().norm()) if tensor.numel() else 0.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_comes_back_has_the_shape_and_dtype_and_the_error_that_was_reported(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    tensor = draw(*shape, dtype=dtype)
    before = tensor.clone()
    sparse = COMPRESSOR.compress_topk(tensor, 0.1)
    forms = [(sparse, COMPRESSOR.decompress_topk(sparse))]
    for num_bits in (2, 4, 8):
        small = COMPRESSOR.compress_quantize(tensor, num_bits)
        forms.append((small, COMPRESSOR.decompress_quantize(small)))
    for form, again in forms:
        assert (again.shape, again.dtype) == (tensor.shape, dtype)
        assert form.error == pytest.approx(error_of(tensor, again), abs=1e-6)
    assert torch.equal(tensor.double(), before.double())


def test_ratios_count_what_is_sent() -> None:
    tensor = draw(1 << 16)
    assert COMPRESSOR.compress_quantize(tensor, 8).ratio == (65536 + 64 * 4) / 262144
    assert COMPRESSOR.compress_quantize(tensor, 4).ratio == (32768 + 64 * 4) / 262144
    small = tensor[:30_000]
    assert COMPRESSOR.compress_topk(small, 0.01).ratio == 300 * 8 / 120_000
    assert COMPRESSOR.compress_topk(small.bfloat16(), 0.01).ratio == 300 * 6 / 60_000
    assert COMPRESSOR.compress_topk(tensor[:0]).ratio == 0.0


@pytest.mark.parametrize("size", [1000, 4 * EXACT_COUNT])
def test_nan_and_infinities_are_chosen_first_and_the_error_is_unknown(size: int) -> None:
    tensor = draw(size)
    tensor[5], tensor[8], tensor[11] = torch.nan, torch.inf, -torch.inf
    sparse = COMPRESSOR.compress_topk(tensor, 10 / size)
    again = COMPRESSOR.decompress_topk(sparse)
    assert again[5].isnan()
    assert again[[8, 11]].tolist() == [torch.inf, -torch.inf]
    assert sparse.error is None


def test_a_block_that_holds_nan_comes_back_as_nan_and_the_error_is_unknown() -> None:
    tensor = draw(3000)
    tensor[1500] = torch.nan
    small = COMPRESSOR.compress_quantize(tensor, 4)
    assert COMPRESSOR.decompress_quantize(small).isnan().nonzero().flatten().tolist() == list(range(1024, 2048))
    assert small.error is None
