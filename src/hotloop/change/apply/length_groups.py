"""How long a loader's samples are, and an order in which batches hold samples of similar length, each once.

Lengths come from a list that the dataset holds, or from reading every sample in a forked process that is thrown away.
"""

from __future__ import annotations

import array
import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DistributedSampler, Sampler

from hotloop.change.apply.device_batches import leaves
from hotloop.change.apply.loader_samples import ask_forked

MEGA_BATCHES = 50
"""Batches that are sorted together, as in fairseq and Transformers: enough to find samples of similar length, and few
enough that batches are still made of samples from everywhere."""
LEAST_WINDOWS = 4
"""Windows of an epoch, as in Transformers. In a single one the lengths alone decide which samples share a batch, and
every epoch has the same batches."""
LENGTH_NAMES = ("lengths", "length", "lens", "sizes")
TOKEN_KEYS = ("input_ids", "tokens", "token_ids", "ids", "src", "text", "x", "inputs")
PROBES_COUNT = 32


# -- the order ---------------------------------------------------------------------------------------------------------


def group_by_length(
    order: Sequence[int], lengths: Sequence[int], batch_size: int, mega_batches: int = MEGA_BATCHES, ranks: int = 1
) -> list[int]:
    """``order`` with samples of similar length together, and batches of ``batch_size`` per rank in random order.

    Samples are sorted within windows of ``mega_batches`` batches, or of fewer where that would leave less than
    ``LEAST_WINDOWS`` windows; windows are cut into batches, and the batches are shuffled. With
    several ``ranks``, ``order`` deals its samples to them in turn, and so does the result: at each step all ranks have
    samples of one length. What does not fill a batch on every rank stays at the end, so that ``drop_last`` drops what
    it would have dropped. The shuffle follows from the order itself and draws from no generator of the training.

    >>> group_by_length([0, 1, 2, 3, 4, 5, 6, 7, 8], [9, 1, 8, 2, 5, 7, 6, 9, 3], batch_size=2)
    [1, 3, 2, 0, 5, 7, 4, 6, 8]
    """
    step = batch_size * ranks
    whole = len(order) // step * step
    window = step * batches_of_window(whole // step, mega_batches)
    batches: list[list[int]] = []
    for start in range(0, whole, window):
        part = sorted(order[start : min(start + window, whole)], key=lambda index: int(lengths[index]))
        batches += [part[first : first + step] for first in range(0, len(part), step)]
    draw = torch.Generator().manual_seed(_seed_of(order))
    shuffled = [batches[place] for place in torch.randperm(len(batches), generator=draw).tolist()]
    return [index for batch in shuffled for index in batch] + list(order[whole:])


def batches_of_window(batches: int, mega_batches: int) -> int:
    """At most ``mega_batches``, and few enough for LEAST_WINDOWS windows, or as many as can hold two batches."""
    windows = min(LEAST_WINDOWS, max(2, batches // 2))
    return max(1, min(mega_batches, math.ceil(batches / windows)))


def padding_ratio(order: Sequence[int], lengths: Sequence[int], batch_size: int) -> float:
    """Share of the positions of all batches that is padding, if each is padded to its longest sample.

    >>> padding_ratio([0, 1, 2, 3], [4, 1, 3, 3], batch_size=2)
    0.2142857142857143
    """
    held = positions = 0
    for start in range(0, len(order), batch_size):
        of_batch = [int(lengths[index]) for index in order[start : start + batch_size]]
        held += sum(of_batch)
        positions += max(of_batch) * len(of_batch)
    return 1.0 - held / positions if positions else 0.0


class GroupedOrder(Sampler[int]):
    """A sampler whose passes with gradients come in groups of one length; it takes another one's place.

    Without gradients (validation) the order stays. ``source`` draws as it would alone; a DistributedSampler is grouped
    over all ranks at once.
    """

    def __init__(self, source: Any, lengths: Sequence[int], batch_size: int, mega_batches: int) -> None:
        self.source = source
        self.lengths = lengths
        self.batch_size = batch_size
        self.mega_batches = mega_batches

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[int]:
        if not torch.is_grad_enabled():
            return iter(self.source)
        if not isinstance(self.source, DistributedSampler):
            return iter(group_by_length(list(self.source), self.lengths, self.batch_size, self.mega_batches))
        ranks, rank = self.source.num_replicas, self.source.rank
        order = _order_of_all_ranks(self.source)
        return iter(group_by_length(order, self.lengths, self.batch_size, self.mega_batches, ranks)[rank::ranks])

    def __getattr__(self, name: str) -> Any:
        """Attributes of the wrapped sampler (``set_epoch``, ``generator``)."""
        if name.startswith("__") or name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)


def _order_of_all_ranks(sampler: DistributedSampler[Any]) -> list[int]:
    """The indices that the sampler deals to all ranks in this epoch, in turn; the same on each rank."""
    every = copy.copy(sampler)
    every.num_replicas, every.rank, every.num_samples = 1, 0, sampler.total_size
    return list(every)


def _seed_of(order: Sequence[int]) -> int:
    """A number that follows from an order, and differs between the permutations of two epochs."""
    seed = len(order)
    for index in order[:16]:
        seed = (seed * 1_000_003 + int(index) + 1) % 2**62
    return seed


# -- the lengths -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """``values[i]`` is the length of sample i; ``source`` says where they come from."""

    values: Sequence[int]
    source: str


def sample_length(sample: Any) -> int | None:
    """Positions of the sequence in a sample: of the entry with a usual name, or of the first entry that has a length.

    >>> sample_length({"label": 3, "input_ids": [5, 6, 7]}), sample_length((torch.zeros(9), 1)), sample_length(2)
    (3, 9, None)
    """
    if isinstance(sample, Mapping):
        named = next((sample[key] for key in TOKEN_KEYS if key in sample), None)
        values = [named] if named is not None else list(sample.values())
    elif isinstance(sample, (list, tuple)) and any(_has_length(one) for one in sample):
        values = list(sample)
    else:
        values = [sample]
    return next((_count(one) for one in values if _has_length(one)), None)


def find_lengths(loader: Any, budget_s: float, *, may_read: bool) -> Lengths | str:
    """The lengths of all samples of a map-style dataset with batches, or why they are not known or of no use.

    ``may_read`` False allows only what takes no time and is the same on every rank: a list that the dataset holds.
    """
    probes = ask_forked(lambda: _probe(loader), budget_s, "measuring samples")
    if isinstance(probes, str):
        return probes
    known = {probes[place]: probes[place + 1] for place in range(0, len(probes), 2)}
    if len(set(known.values())) < 2:
        return f"{len(known)} examined samples all have a length of {next(iter(known.values()), 0)}"
    listed = _find_listed(loader.dataset, known)
    if listed is not None:
        return listed
    if not may_read:
        return "on several ranks the lengths must come from a list that the dataset holds (self.lengths)"
    values = ask_forked(lambda: _read_all(loader.dataset, budget_s), budget_s + 5.0, "measuring samples")
    if isinstance(values, str):
        return values
    count = len(loader.dataset)
    if len(values) < count:
        return f"only {len(values):,} of {count:,} samples could be measured in {budget_s:g} s (measure_s)"
    return Lengths(values=values, source="reading every sample once")


# -- in a forked process -----------------------------------------------------------------------------------------------


def _probe(loader: Any) -> list[int] | str:
    """Index and length of some samples, if batches of them are padded to their longest."""
    dataset = loader.dataset
    count = len(dataset)
    places = sorted({place * (count - 1) // max(1, PROBES_COUNT - 1) for place in range(min(count, PROBES_COUNT))})
    samples = {place: _read(dataset, place) for place in places}
    found = {place: length for place, sample in samples.items() if (length := sample_length(sample)) is not None}
    if len(found) < len(samples):
        return "its samples hold no sequence"
    ordered = sorted(found, key=found.__getitem__)
    if len(ordered) >= 4 and found[ordered[0]] < found[ordered[-1]]:
        short = _batch_width(loader.collate_fn([samples[place] for place in ordered[:2]]), found[ordered[1]])
        long = _batch_width(loader.collate_fn([samples[ordered[0]], samples[ordered[-1]]]), found[ordered[-1]])
        if short is None or long is None or short >= long:
            return "its batches are not padded to their longest sample, so grouping saves nothing"
    return [number for place in places for number in (place, found[place])]


def _batch_width(batch: Any, length: int) -> int | None:
    """The widest second dimension of a batch's tensors, if that has to do with the length; None where it has not."""
    widths = [one.shape[d] for one in leaves(batch) if isinstance(one, torch.Tensor) for d in range(min(2, one.dim()))]
    return max(widths) if any(width >= length for width in widths) else None


def _read_all(dataset: Any, budget_s: float) -> list[int] | str:
    until, lengths = time.monotonic() + budget_s, []
    for place in range(len(dataset)):
        lengths.append(sample_length(_read(dataset, place)) or 0)
        if time.monotonic() > until:
            break
    return lengths


def _read(dataset: Any, place: int) -> Any:
    many = getattr(dataset, "__getitems__", None)
    return dataset[place] if many is None else many([place])[0]


# -- lists that the dataset holds -------------------------------------------------------------------------------------


def _find_listed(dataset: Any, known: Mapping[int, int]) -> Lengths | None:
    """A list of the dataset that agrees with every sample that was looked at, up to a constant (special tokens)."""
    inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if type(dataset).__name__ == "Subset" and inner is not None and indices is not None:
        numbers = [int(index) for index in indices]
        found = _find_listed(inner, {numbers[place]: length for place, length in known.items()})
        if found is None:
            return None
        return Lengths(values=[found.values[number] for number in numbers], source=found.source)
    count = len(dataset)
    attributes = dict(getattr(dataset, "__dict__", {}))
    names = sorted(attributes, key=lambda name: (name not in LENGTH_NAMES, name))
    for name in names:
        values = _as_lengths(attributes[name], count)
        if values is not None and len({values[place] - length for place, length in known.items()}) == 1:
            return Lengths(values=values, source=f"{type(dataset).__name__}.{name}")
    return None


def _as_lengths(value: Any, count: int) -> list[int] | None:
    """Numbers as they are, or the lengths of sequences; None for anything else, or for another number of them."""
    if hasattr(value, "dtype") and len(getattr(value, "shape", ())) == 1:  # a tensor or an array of numbers
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or len(value) != count:
        return None
    if all(type(one) is int for one in value):
        return list(value)
    if all(_has_length(one) for one in value):
        return [_count(one) for one in value]
    return None


def _has_length(value: Any) -> bool:
    if isinstance(value, torch.Tensor) or (hasattr(value, "shape") and hasattr(value, "dtype")):
        return len(value.shape) > 0
    return isinstance(value, (list, tuple, str, bytes, array.array))


def _count(value: Any) -> int:
    return int(value.shape[0]) if hasattr(value, "shape") else len(value)
