"""How many samples a step holds: from loaders and model inputs of every layout, and unknown where nothing says it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.replay.hooked import Hooked, no_failures


@pytest.fixture(autouse=True)
def _nothing_fails() -> Iterator[None]:
    with no_failures():
        yield


class Sequences(nn.Module):
    """A model whose LSTM takes (time, sample, feature); ``call`` is how its parts are called."""

    def __init__(self, *, transposes: bool) -> None:
        super().__init__()
        self.inner = nn.LSTM(3, 4)
        self.transposes = transposes
        self.call: Callable[..., Any] = lambda module, *values: module(*values)

    def forward(self, x: Any) -> Any:
        return self.call(self.inner, x.transpose(0, 1) if self.transposes else x)[0]


def loader_of(count: int = 90, size: int = 4, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(count, 7, 3)), batch_size=size, **options)


def train_on_all(loader: DataLoader[Any], pick: Callable[[Any], Any] = lambda batch: batch) -> list[int]:
    hooked = Hooked(nn.Linear(3, 2))
    for batch in hooked.take(loader):
        hooked.train_on(pick(batch))
    return hooked.column("samples")


def test_a_loader_that_puts_time_first_is_counted_by_its_second_dimension() -> None:
    time_first = loader_of(collate_fn=lambda samples: torch.stack([x for (x,) in samples], 1))
    assert train_on_all(time_first) == [*[4] * 21, 2]


def test_a_batch_without_a_dimension_of_the_loaders_size_is_unknown() -> None:
    joined = loader_of(96, collate_fn=lambda samples: torch.cat([x for (x,) in samples]))
    assert set(train_on_all(joined)) == {0}


def test_pictures_of_different_sizes_are_counted_by_the_list_they_come_in() -> None:
    pictures = [(torch.zeros(3, 5 + i % 3, 7), i) for i in range(22)]
    loader = DataLoader(pictures, batch_size=4, collate_fn=lambda samples: tuple(zip(*samples, strict=True)))  # type: ignore[arg-type]
    samples = train_on_all(loader, lambda batch: torch.stack([one.mean((1, 2)) for one in batch[0]]))
    assert samples == [4, 4, 4, 4, 2]


@pytest.mark.parametrize("transposes", [False, True])
def test_a_recurrent_model_shows_which_dimension_of_its_input_counts(transposes: bool) -> None:
    model = Sequences(transposes=transposes)
    hooked = Hooked(model)
    model.call = hooked.call
    for length in (9, 9, 9, 9, 9, 5):
        hooked.train_on(torch.randn((6, length, 3) if transposes else (length, 6, 3)))
    assert hooked.column("samples") == [6] * 5
    unseen = Hooked(Sequences(transposes=transposes))  # as when it is compiled: calls inside it are not seen
    for _ in range(3):
        unseen.train_on(torch.randn(9, 6, 3))
    assert set(unseen.column("samples")) == {0}


def test_a_list_of_pictures_holds_as_many_samples() -> None:
    class Pictures(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, pictures: Any) -> Any:
            return self.inner(torch.stack([one.mean((1, 2)) for one in pictures]))

    hooked = Hooked(Pictures())
    for _ in range(4):
        hooked.train_on([torch.randn(3, 8 + i, 9) for i in range(5)])
    assert hooked.column("samples") == [5] * 3


def test_a_batch_that_was_only_looked_at_is_not_counted() -> None:
    hooked = Hooked(nn.Linear(3, 2))
    loader = loader_of(32)
    for _ in range(3):
        next(hooked.take(loader))
        for (x,) in hooked.take(loader):
            hooked.train_on(x)
    assert set(hooked.column("samples")) == {4}
    assert set(hooked.column("micro_batches")) == {1}


def test_batches_of_two_iterators_at_once_are_all_counted() -> None:
    hooked = Hooked(nn.Linear(3, 2))
    loader = loader_of(32)
    for _ in range(2):
        for (x,), (other,) in zip(hooked.take(loader), hooked.take(loader), strict=True):
            hooked.train_on(torch.cat([x, other]))
    assert set(hooked.column("samples")) == {8}


def test_batches_fetched_while_the_one_before_is_computed_are_counted_once() -> None:
    hooked = Hooked(nn.Linear(3, 2))
    batches = hooked.take(loader_of(400))
    (x,) = next(batches)
    for _ in range(12):
        for _ in range(8):
            out = hooked.call(hooked.model, x)
            (x,) = next(batches)
            hooked.run_backward(out.sum())
        hooked.optimize()
    assert set(hooked.column("samples")[-10:]) == {32}


def test_a_loader_that_only_evaluates_feeds_no_backward_of_other_data() -> None:
    hooked = Hooked(nn.Linear(3, 2))
    held_out = loader_of(32)
    for _ in range(4):
        for _ in range(3):
            hooked.train_on(torch.randn(5, 3))
        with torch.no_grad():
            for (x,) in hooked.take(held_out):
                hooked.call(hooked.model, x)
    assert {n for n in hooked.column("samples") if n} == {5}
    (state,) = hooked.engine.loading.told()
    assert state.feeds_backward is False
    evaluated = [k for k, n in enumerate(hooked.column("nograd_forwards")) if n]
    assert [hooked.column("bursts_other_loader")[k] for k in evaluated] == [1] * 3


def run_closures(draw: Callable[[], Any]) -> list[int]:
    """Samples of the last steps, which evaluate a closure three times each."""
    hooked = Hooked(nn.Linear(3, 2))
    for _ in range(6):
        hooked.before_step(hooked.optimizer, (), {})
        for _ in range(3):
            hooked.backward(draw())
        hooked.after_step(hooked.optimizer, (), {})
    return hooked.column("samples")[-4:]


def test_a_closure_that_is_evaluated_again_learns_from_the_same_samples() -> None:
    x = torch.randn(27, 3)
    assert run_closures(lambda: x) == [27] * 4


def test_closures_that_make_their_own_inputs_do_not_tell_their_samples() -> None:
    kept: list[Any] = []

    def draw() -> Any:
        kept.append(torch.randn(9, 3))
        return kept[-1]

    assert run_closures(draw) == [-1] * 4


def test_padding_of_a_loaders_token_numbers_is_counted() -> None:
    ids = torch.arange(1, 33).reshape(4, 8)
    ids[1:3, 6:] = 0
    hooked = Hooked(nn.Embedding(40, 2))
    for (x,) in hooked.take(DataLoader(TensorDataset(ids.repeat(6, 1)), batch_size=4)):
        hooked.train_on(x)
    for name, expected in {"tokens": 28, "padding_tokens": 4, "longest_tokens": 32, "padded_tokens": 32}.items():
        assert set(hooked.column(name)) == {expected}, name


def test_padding_of_a_models_own_inputs_is_counted_where_no_loader_gives_them() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(40, 2)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.table(input_ids) * attention_mask[..., None]

    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])
    hooked = Hooked(Reader())
    for _ in range(4):
        out = hooked.call(hooked.model, input_ids=torch.ones(2, 5, dtype=torch.int64), attention_mask=mask)
        hooked.run_backward(out.sum())
        hooked.optimize()
    tokens = ("samples", "tokens", "padding_tokens", "longest_tokens")
    assert [[hooked.column(name)[k] for name in tokens] for k in range(3)] == [[2, 7, 3, 8]] * 3
