"""DevicePrefetcher on a machine without an accelerator."""

import dataclasses
from collections import OrderedDict, namedtuple
from collections.abc import Iterator

import pytest
import torch

from hotloop import DevicePrefetcher
from hotloop.change.apply.device_batches import move_batch, tensors_of

Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass(frozen=True)
class Example:
    x: torch.Tensor
    name: str


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
