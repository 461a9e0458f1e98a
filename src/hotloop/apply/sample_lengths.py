"""A DataLoader -> how long each of its samples is, and whether its batches are padded to their longest one.

Lengths come from a list that the data set holds, or from reading every sample in a forked process that is thrown away.
"""

from __future__ import annotations

import array
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hotloop.apply.loader_samples import begin_trial, leaves

LENGTH_NAMES = ("lengths", "length", "lens", "sizes")
TOKEN_KEYS = ("input_ids", "tokens", "token_ids", "ids", "src", "text", "x", "inputs")
PROBES_COUNT = 32
LONGEST = 1 << 31
FAILED = "!"


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
    """The lengths of all samples of a map-style data set with batches, or why they are not known or of no use.

    ``may_read`` False allows only what takes no time and is the same on every rank: a list that the data set holds.
    """
    if not hasattr(os, "fork") or sys.platform != "linux":
        return "this system cannot fork a process safely, so samples cannot be measured"
    probes = _run_forked(lambda: _probe(loader), budget_s)
    if isinstance(probes, str):
        return probes
    known = {probes[place]: probes[place + 1] for place in range(0, len(probes), 2)}
    if len(set(known.values())) < 2:
        return f"{len(known)} samples that were looked at all have a length of {next(iter(known.values()), 0)}"
    listed = _find_listed(loader.dataset, known)
    if listed is not None:
        return listed
    if not may_read:
        return "on several ranks the lengths must come from a list that the data set holds (self.lengths)"
    values = _run_forked(lambda: _read_all(loader.dataset, budget_s), budget_s + 5.0)
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
            return "its batches are not padded to their longest sample, so that grouping wins nothing"
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


def _run_forked(work: Any, budget_s: float) -> list[int] | str:
    """What ``work()`` answers in a forked child: numbers, or a text that says why there are none."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forks beside threads
        child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            _answer(writing, work, budget_s)
        finally:
            os._exit(0)
    os.close(writing)
    try:
        data = _receive(reading, budget_s)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        _reap(child)
    if data is None:
        return f"measuring samples did not end within {budget_s:g} s"
    if data[:1] == FAILED.encode():
        return data[1:].decode(errors="replace")
    if not data:
        return "a forked process crashed while measuring samples"
    numbers = array.array("q")
    numbers.frombytes(data[1:])
    return numbers.tolist()


def _answer(writing: int, work: Any, budget_s: float) -> None:
    begin_trial(budget_s)
    torch.set_num_threads(1)
    try:
        found = work()
    except Exception as error:
        found = f"measuring samples failed: {type(error).__name__}: {str(error)[:200]}"
    text = FAILED.encode() + found.encode() if isinstance(found, str) else b"=" + array.array("q", found).tobytes()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(text)


def _receive(descriptor: int, budget_s: float) -> bytes | None:
    pieces: list[bytes] = []
    until = time.monotonic() + budget_s
    while True:
        left_s = until - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            return None
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def _reap(child: int) -> None:
    try:
        os.waitpid(child, 0)
    except ChildProcessError:  # the script reaps its children itself
        return


# -- lists that the data set holds -------------------------------------------------------------------------------------


def _find_listed(dataset: Any, known: Mapping[int, int]) -> Lengths | None:
    """A list of the data set that agrees with every sample that was looked at, up to a constant (special tokens)."""
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
    return min(LONGEST, int(value.shape[0]) if hasattr(value, "shape") else len(value))
