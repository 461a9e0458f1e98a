"""group_by_length and cache_samples: the techniques as calls, which what tune patches contains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import hotloop

SENTENCES: Any = [torch.full(((index * 17) % 40 + 1,), index % 7 + 1) for index in range(400)]


def pad(samples: list[Any]) -> Any:
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def padding_of(loader: Any) -> float:
    batches = list(loader)
    return sum(int((one == 0).sum()) for one in batches) / sum(one.numel() for one in batches)


def test_a_grouped_loader_pads_less_and_one_whose_order_must_stay_is_refused() -> None:
    loader = DataLoader(SENTENCES, batch_size=8, shuffle=True, collate_fn=pad)
    assert padding_of(loader) > 0.3
    assert hotloop.group_by_length(loader, mega_batches=10) is loader
    assert padding_of(loader) < 0.15
    with pytest.raises(hotloop.HotloopError, match=r"group_by_length: .*shuffle=False.*; leave the call out"):
        hotloop.group_by_length(DataLoader(SENTENCES, batch_size=8, collate_fn=pad))


class Slow(Dataset[Any]):
    def __init__(self, *, draws: bool) -> None:
        self.values = torch.arange(48.0).view(16, 3)
        self.draws = draws

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        row = self.values[index]
        for _ in range(300):
            row = row + 1.0 - 1.0
        return row + torch.randn(3) if self.draws else row


def test_a_cached_loader_has_the_same_batches_and_samples_that_draw_are_refused() -> None:
    plain = [one.tolist() for one in DataLoader(Slow(draws=False), batch_size=4)]
    loader = hotloop.cache_samples(DataLoader(Slow(draws=False), batch_size=4))
    assert [[one.tolist() for one in loader] for _ in range(3)] == [plain] * 3
    with pytest.raises(hotloop.HotloopError, match=r"cache_samples: .*; leave the call out"):
        hotloop.cache_samples(DataLoader(Slow(draws=True), batch_size=4))
