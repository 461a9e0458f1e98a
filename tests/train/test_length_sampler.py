"""LengthGroupedSampler: every sample, in other orders, in step on all ranks, and clear errors."""

import random

import pytest
import torch

from hotloop import LengthGroupedSampler
from hotloop.change.apply.length_groups import padding_ratio

LENGTHS = [random.Random(i).randint(1, 100) for i in range(403)]


def test_every_epoch_has_every_sample_once_and_little_padding() -> None:
    sampler = LengthGroupedSampler(LENGTHS, batch_size=8)
    first = list(sampler)
    assert first == list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(403))
    assert len(sampler) == 403
    assert padding_ratio(first, LENGTHS, 8) < 0.08 < 0.4 < padding_ratio(range(403), LENGTHS, 8)
    assert list(LengthGroupedSampler(torch.tensor(LENGTHS), batch_size=8)) == first


@pytest.mark.parametrize(("count", "batch_size"), [(403, 8), (64, 16), (48, 16), (32, 16), (200, 2)])
def test_small_data_of_distinct_lengths_has_other_batches_in_each_epoch(count: int, batch_size: int) -> None:
    lengths = random.Random(0).sample(range(1, 10 * count), count)
    sampler = LengthGroupedSampler(lengths, batch_size)
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        order = list(sampler)
        assert sorted(order) == list(range(count))
        starts = range(0, count // batch_size * batch_size, batch_size)
        epochs.append({frozenset(order[at : at + batch_size]) for at in starts})
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert len(epochs[one] & epochs[other]) < len(epochs[one]) / 4


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_an_epoch_and_step_with_one_length(ranks: int) -> None:
    parts = [list(LengthGroupedSampler(LENGTHS, batch_size=8, ranks=ranks, rank=rank)) for rank in range(ranks)]
    assert {len(one) for one in parts} == {-(-403 // ranks)}
    assert {index for one in parts for index in one} == set(range(403))
    for first in range(0, len(parts[0]) - 8, 8):
        longest = [max(LENGTHS[index] for index in one[first : first + 8]) for one in parts]
        assert max(longest) - min(longest) <= 12
