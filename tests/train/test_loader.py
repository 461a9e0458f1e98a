"""make_loader and DevicePrefetcher on a machine without an accelerator."""

import dataclasses
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

from hotloop import DevicePrefetcher, make_loader
from hotloop.change.apply import applier
from hotloop.change.apply.device_batches import move_batch, tensors_of
from hotloop.train.loader import loader_settings

Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass(frozen=True)
class Example:
    x: torch.Tensor
    name: str


class Rows(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> int:
        return i


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class Sharded(Stream):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(4)) if info is None else iter(range(info.id, 4, info.num_workers))


@pytest.mark.parametrize(
    ("cores", "ranks", "data", "workers"),
    [(16, 4, Rows(), 3), (64, 1, Rows(), 8), (1, 1, Rows(), 0), (4, 8, Rows(), 0), (8, 1, Stream(), 1),
     (8, 1, Sharded(), 7), (8, 1, TensorDataset(torch.ones(2)), 0)],
)  # fmt: skip
def test_workers_are_the_share_of_the_cores(
    cores: int, ranks: int, data: Any, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applier, "count_cores", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    chosen = loader_settings(data, {})
    assert chosen["num_workers"] == workers
    assert chosen.get("persistent_workers", False) is (workers > 0)
    assert chosen["pin_memory"] is False


def test_what_the_caller_sets_stays() -> None:
    loader = make_loader(Rows(), batch_size=2, num_workers=1, persistent_workers=False, drop_last=True, shuffle=True)
    assert (loader.num_workers, loader.persistent_workers, loader.drop_last, loader.batch_size) == (1, False, True, 2)


def test_any_nesting_moves_and_keeps_its_types() -> None:
    batch = {
        "pair": Pair(torch.ones(1), [torch.ones(2), "text"]),
        "example": Example(torch.ones(3), "a"),
        "ordered": OrderedDict(x=(torch.ones(4), None, 5)),
    }
    assert [len(one) for one in tensors_of(batch)] == [1, 2, 3, 4]
    moved = move_batch(batch, lambda leaf: leaf * 2)
    assert [int(one[0]) for one in tensors_of(moved)] == [2, 2, 2, 2]
    assert [type(one) for one in moved.values()] == [Pair, Example, OrderedDict]
    assert moved["ordered"]["x"][1:] == (None, 5)
    assert int(batch["example"].x[0]) == 1  # type: ignore[attr-defined]


def test_on_a_cpu_batches_pass_straight_through() -> None:
    batches = [torch.ones(1), {"x": torch.ones(1)}]
    prefetcher = DevicePrefetcher(batches, "cpu")
    assert len(prefetcher) == 2
    passed = list(prefetcher)
    assert passed[0] is batches[0]
    assert passed[1] is batches[1]
    assert prefetcher.position == 2


def test_errors_come_when_their_batch_is_asked_for_and_the_position_counts_what_was_given() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    prefetcher = DevicePrefetcher(failing(), "cpu")
    iterator = iter(prefetcher)
    assert next(iterator) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(iterator)
    assert prefetcher.position == 1
