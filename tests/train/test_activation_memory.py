"""compare_memory: bytes kept for backward on known answers, and losses that must be equal."""

import pytest
import torch
from torch import nn

from hotloop.train.activation_memory import MemoryComparisonError, compare_memory, recompute_blocks

ROWS, WIDTH, BLOCKS = 16, 32, 3
TENSOR_BYTES = ROWS * WIDTH * 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.sin(self.inner(x)))


def build() -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(BLOCKS)))


def test_kept_bytes_are_those_that_the_operators_need() -> None:
    compared = compare_memory(build, torch.ones(ROWS, WIDTH))
    # A block keeps the input of its product, of the sine, and the result of exp, which is the next block's input.
    # At the end the square keeps its input, the last of these.
    assert compared.plain.saved_bytes == (2 * BLOCKS + 1) * TENSOR_BYTES
    assert compared.recomputed.saved_bytes == (BLOCKS + 1) * TENSOR_BYTES
    assert compared.plain.loss == compared.recomputed.loss
    assert compared.plain.peak_bytes is None


def test_dropout_is_drawn_again_alike() -> None:
    def dropping() -> nn.Module:
        return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)) for _ in range(2)))

    before = torch.get_rng_state()
    assert compare_memory(dropping, torch.ones(4, 8)).blocks_count == 2
    assert torch.equal(before, torch.get_rng_state())


def test_losses_that_differ_are_an_error() -> None:
    calls = []

    def changing() -> nn.Module:
        calls.append(1)
        model = build()
        with torch.no_grad():
            model[0].inner.bias += len(calls)  # type: ignore[index,union-attr]
        return model

    with pytest.raises(MemoryComparisonError, match="the loss is"):
        compare_memory(changing, torch.ones(ROWS, WIDTH))


def test_a_model_without_blocks_says_so() -> None:
    with pytest.raises(MemoryComparisonError, match="give recompute="):
        compare_memory(lambda: nn.Linear(4, 4), torch.ones(2, 4))
    assert recompute_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == 0
