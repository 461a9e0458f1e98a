"""group-by-length: every sample once an epoch, less padding, ranks in step, and refusals that name the fact."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, Subset

from hotloop.change.apply import TECHNIQUES
from hotloop.change.apply.api import AppliedStrategy
from hotloop.change.apply.applier import Applier, make_context
from hotloop.change.apply.length_groups import group_by_length, padding_ratio

from .small import apply_one, strategy_of

COUNT = 400
BATCH = 8


class Sentences(Dataset[Any]):
    """Sentence i is full of i + 1; nobody holds its length."""

    def __init__(self, count: int = COUNT) -> None:
        draw = random.Random(1)
        self._spans = {i: draw.randint(3, 60) for i in range(count)}

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, i: int) -> Any:
        return {"input_ids": torch.full((self._spans[i],), i + 1), "label": i % 2}


class Listed(Sentences):
    def __init__(self, count: int = COUNT) -> None:
        super().__init__(count)
        self.lengths = [self._spans[i] for i in range(count)]


class Texts(Dataset[Any]):
    """A list of token lists, to which two special tokens are added."""

    def __init__(self) -> None:
        draw = random.Random(2)
        self.rows = [[7] * draw.randint(3, 60) for _ in range(COUNT)]

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> Any:
        return torch.tensor([1, *self.rows[i], 2]), i


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(4))


def pad(samples: Sequence[Any]) -> dict[str, Any]:
    ids = [one["input_ids"] for one in samples]
    return {"input_ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True), "label": [o["label"] for o in samples]}


def pad_pairs(samples: Sequence[Any]) -> Any:
    return torch.nn.utils.rnn.pad_sequence([one[0] for one in samples], batch_first=True), [one[1] for one in samples]


def pad_to_64(samples: Sequence[Any]) -> torch.Tensor:
    return torch.stack([torch.nn.functional.pad(one["input_ids"], (0, 64 - len(one["input_ids"]))) for one in samples])


def make_loader(data: Any = None, **options: Any) -> DataLoader[Any]:
    data = Sentences() if data is None else data
    return DataLoader(data, **{"batch_size": BATCH, "shuffle": True, "collate_fn": pad, **options})


def told(applied: AppliedStrategy) -> tuple[str, str]:
    (record,) = applied.records
    return record.status, record.detail


def rows_of(loader: Any) -> list[list[int]]:
    """The numbers of the sentences in each batch."""
    return [(batch["input_ids"][:, 0] - 1).tolist() for batch in loader]


def flat(rows: list[list[int]]) -> list[int]:
    return [number for row in rows for number in row]


def padding_of(loader: Any) -> float:
    sizes = [(batch["input_ids"].numel(), int((batch["input_ids"] == 0).sum())) for batch in loader]
    return sum(pads for _, pads in sizes) / sum(size for size, _ in sizes)


def test_every_epoch_has_every_sample_once_in_another_order_and_less_padding() -> None:
    torch.manual_seed(0)
    loader = make_loader()
    before = padding_of(loader)
    applied = apply_one("group-by-length", loader=loader)
    assert told(applied)[0] == "applied"
    assert applied.records[0].numerics == "resampled"
    after = padding_of(loader)
    assert after < 0.1 < 0.3 < before
    assert after == pytest.approx(float(applied.records[0].values["padding_after"]), abs=0.03)  # type: ignore[arg-type]
    first, second = rows_of(loader), rows_of(loader)
    assert first != second
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(COUNT))
    applied.undo()
    assert padding_of(loader) > 0.3


def test_the_training_draws_what_it_drew_before() -> None:
    def draw_of(is_grouped: bool) -> tuple[list[int], float]:
        torch.manual_seed(3)
        loader = make_loader()
        if is_grouped:
            apply_one("group-by-length", loader=loader)
        rows = flat(rows_of(loader))
        return rows, float(torch.rand(()))

    (plain, after), (grouped, after_grouping) = draw_of(False), draw_of(True)
    assert after == after_grouping
    assert plain != grouped
    assert draw_of(True)[0] == grouped


def test_passes_without_gradients_keep_their_order() -> None:
    loader = make_loader()
    with torch.no_grad():
        torch.manual_seed(4)
        plain = rows_of(loader)
        apply_one("group-by-length", loader=loader)
        torch.manual_seed(4)
        assert rows_of(loader) == plain


def test_what_the_loader_drops_is_what_it_would_have_dropped() -> None:
    data = Sentences(COUNT + 5)
    torch.manual_seed(5)
    plain = set(flat(rows_of(make_loader(data, drop_last=True))))
    loader = make_loader(data, drop_last=True)
    apply_one("group-by-length", loader=loader)
    torch.manual_seed(5)
    assert set(flat(rows_of(loader))) == plain


@pytest.mark.parametrize(
    ("make", "source"),
    [
        (lambda: make_loader(Listed()), "Listed.lengths"),
        (lambda: make_loader(Texts(), collate_fn=pad_pairs), "Texts.rows"),
        (lambda: make_loader(Subset(Listed(), list(range(COUNT - 1, 99, -1)))), "Listed.lengths"),
    ],
)
def test_lengths_that_the_data_set_holds_are_used(make: Callable[[], Any], source: str) -> None:
    status, detail = told(apply_one("group-by-length", loader=make()))
    assert (status, detail.rpartition("lengths from ")[2]) == ("applied", source)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: make_loader(shuffle=False), "the script asks for its samples in order (shuffle=False)"),
        (lambda: make_loader(batch_size=1), "a batch of one sample has no padding"),
        (lambda: make_loader(collate_fn=pad_to_64), "its batches are not padded to their longest sample, so grouping"),
        (lambda: DataLoader(Stream()), "Stream is iterable: it defines its own order"),
        (lambda: make_loader(list(range(50)), collate_fn=None), "its samples hold no sequence"),
        (lambda: make_loader([[1, 2]] * 50, collate_fn=None), "32 examined samples all have a length of 2"),
        (
            lambda: make_loader(shuffle=None, sampler=RandomSampler(range(COUNT), replacement=True)),
            "the sampler draws with replacement, or not every sample",
        ),
        (lambda: make_loader(shuffle=None, sampler=[1, 2, 3]), "the script has a sampler of its own (list)"),
    ],
)
def test_refusals(make: Callable[[], Any], why: str) -> None:
    status, detail = told(apply_one("group-by-length", loader=make()))
    assert status == "not applicable"
    assert detail.startswith(why)


def apply_on_ranks(loader: Any, ranks: int) -> list[tuple[str, str]]:
    strategy = strategy_of("group-by-length")
    context = replace(make_context(strategy, from_outside=True), world_size=ranks)
    applier = Applier(strategy, TECHNIQUES, context)
    applier.loader_built(loader)
    return [(record.status, record.detail) for record in applier.records]


@pytest.mark.parametrize("count", [COUNT, COUNT + 3])
def test_ranks_share_the_samples_of_an_epoch_and_step_with_one_length(count: int) -> None:
    data = Listed(count)
    loaders = []
    for rank in range(2):
        sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=2, rank=rank, seed=3)
        loader = make_loader(data, shuffle=None, sampler=sampler)
        assert apply_on_ranks(loader, 2)[0][0] == "applied"
        loaders.append((loader, sampler))
    orders = []
    for epoch in range(2):
        for _, sampler in loaders:
            sampler.set_epoch(epoch)
        batches = [rows_of(loader) for loader, _ in loaders]
        assert set(flat(batches[0] + batches[1])) == set(range(count))
        assert sum(map(len, batches[0])) == sum(map(len, batches[1])) == -(-count // 2)
        longest = [[max(data.lengths[i] for i in batch) for batch in one] for one in batches]
        apart = [abs(a - b) for a, b in zip(*longest, strict=True)]
        assert sum(apart[:-1]) / len(apart[:-1]) < 1.5
        orders.append(batches)
    assert orders[0] != orders[1]


def test_the_law_of_grouping() -> None:
    draw = random.Random(9)
    for _ in range(200):
        count, size, ranks = draw.randint(1, 90), draw.randint(1, 9), draw.randint(1, 4)
        lengths = [draw.randint(1, 50) for _ in range(count)]
        order = draw.sample(range(count), count)
        grouped = group_by_length(order, lengths, size, draw.randint(1, 5), ranks)
        assert sorted(grouped) == sorted(order)
        whole = count // (size * ranks) * size * ranks
        assert grouped[whole:] == order[whole:]
        assert 0.0 <= padding_ratio(grouped, lengths, size) < 1.0
