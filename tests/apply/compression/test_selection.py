"""The largest elements of a vector, with and without a sample."""

import pytest
import torch

from hotloop.change.apply.compression.selection import select_largest


def test_a_short_vector_gives_exactly_the_largest() -> None:
    values = torch.tensor([0.1, -5.0, 3.0, -0.2, 4.0])
    assert sorted(select_largest(values, 3).tolist()) == [1, 2, 4]


@pytest.mark.parametrize("step", [0, 1, 57])
@pytest.mark.parametrize("shape", ["normal", "heavy tails", "layers of unlike scale"])
def test_a_sample_finds_about_as_many_and_nearly_all_of_the_mass(shape: str, step: int) -> None:
    draws = torch.Generator().manual_seed(7)
    values = torch.randn(1_000_000, generator=draws)
    if shape == "heavy tails":
        values = values**3
    elif shape == "layers of unlike scale":
        values[:500_000] *= 0.01
    count = 10_000
    found = select_largest(values, count, step)
    assert 0.7 * count <= found.numel() <= count
    assert found.unique().numel() == found.numel()
    best = values.abs().topk(count).values.sum()
    assert values[found].abs().sum() >= 0.75 * best
