"""cache-samples: the same bits as without it, fewer reads, and a refusal or an end that names the fact."""

import copy
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hotloop.change.apply.api import AppliedStrategy
from hotloop.change.apply.loader_samples import alike

from .small import apply_one, said

COUNT = 20


class Reading(Dataset[Any]):
    """Sample i is full of i, takes a moment, and writes a line to a file at every read, in whatever process."""

    def __init__(self, log: Path, count: int = COUNT) -> None:
        self.log = str(log)
        self.values = torch.arange(count, dtype=torch.float32)
        self.scale = 1.0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: int) -> Any:
        with open(self.log, "a") as file:
            file.write(f"{i}\n")
        total = sum(x * x for x in range(20_000))  # much longer than a copy
        return {"x": self.values[i].repeat(8) * self.scale, "name": f"{i}", "total": total}


class Drawing(Reading):
    def __getitem__(self, i: int) -> Any:
        return {**super().__getitem__(i), "draw": torch.rand(())}


class SometimesDrawing(Reading):
    def __getitem__(self, i: int) -> Any:
        extra = random.random() if i == 13 else 0.0
        return {**super().__getitem__(i), "draw": extra}


class OwnDraws(Reading):
    """Its own generator changes only every tenth sample or so: four reads may all look alike."""

    def __init__(self, log: Path) -> None:
        super().__init__(log)
        self.own = random.Random(3)

    def __getitem__(self, i: int) -> Any:
        sample = super().__getitem__(i)
        return {**sample, "x": -sample["x"] if self.own.random() < 0.1 else sample["x"]}


class Batched(Reading):
    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [self[key] for key in keys]


class Quick(Reading):
    def __getitem__(self, i: int) -> Any:
        return self.values[i]


class Picture:
    pass


class Pictures(Reading):
    def __getitem__(self, i: int) -> Any:
        return Picture()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


class Registered(Reading):
    def __init_subclass__(cls) -> None:
        raise AssertionError("a subclass was made")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "reads.txt"


def reads_of(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def make_loader(data: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, **{"batch_size": 4, **options})


def apply_cache(loader: Any, **settings: Any) -> AppliedStrategy:
    return apply_one("cache-samples", settings, loader=loader)


def epoch_of(loader: Any) -> list[Any]:
    return list(loader)


@pytest.mark.parametrize("kind", [Reading, Batched])
@pytest.mark.parametrize("workers", [0, 2])
def test_later_epochs_have_the_same_bits_and_read_almost_nothing(
    kind: Any, workers: int, log: Path, tmp_path: Path
) -> None:
    plain = epoch_of(make_loader(kind(tmp_path / "other.txt")))
    data = kind(log)
    loader = make_loader(data, num_workers=workers)
    applied = apply_cache(loader)
    assert said(applied)[0][0] == "applied"
    assert applied.records[0].numerics == "exact"
    first = epoch_of(loader)
    before = reads_of(log)
    later = [epoch_of(loader) for _ in range(3)]
    assert all(alike(plain, one) for one in (first, *later))
    # Each process reads its first, second, fourth, ... hit again: not more than five of its up to twenty a pass.
    assert reads_of(log) - before <= 3 * max(1, workers) * 5 < 3 * COUNT
    applied.undo()
    assert type(data) is kind
    before = reads_of(log)
    assert alike(plain, epoch_of(loader))
    assert reads_of(log) - before == COUNT


def test_changing_samples_in_place_changes_nothing_in_the_cache(log: Path) -> None:
    loader = make_loader(Reading(log), batch_size=None)
    apply_cache(loader)
    seen = []
    for _ in range(3):
        for sample in loader:
            seen.append(float(sample["x"][0]))
            sample["x"].mul_(-100)
            sample["name"] = "changed"
    assert seen == [float(i) for i in range(COUNT)] * 3


def test_a_data_set_whose_own_samples_are_changed_in_place_is_not_kept(log: Path) -> None:
    class Views(Reading):
        def __getitem__(self, i: int) -> Any:
            super().__getitem__(i)
            return self.values[i : i + 1]

    def run(is_cached: bool) -> tuple[list[float], list[tuple[str, str]]]:
        loader = make_loader(Views(log), batch_size=None)
        applied = apply_cache(loader) if is_cached else None
        seen = []
        for _ in range(3):
            for sample in loader:
                seen.append(float(sample))
                sample.add_(1)  # into the data set's own memory
                if applied is not None:
                    applied.after_step()
        return seen, [] if applied is None else said(applied)

    plain, _ = run(False)
    treated, records = run(True)
    assert treated == plain
    assert records[-1][0] == "not applicable"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Drawing, "samples draw random numbers (torch), which a cache would freeze"),
        (OwnDraws, "samples draw random numbers (dataset.own), which a cache would freeze"),
        (Pictures, "a sample contains test_cache_samples.Picture"),
        (lambda log: Stream(), "Stream is iterable: its samples have no index to store them under"),
        (lambda log: [1, 2, 3], "list is a built-in class, whose instances cannot be read through a cache"),
        (Registered, "Registered is notified of its subclasses (__init_subclass__), so none can be made unnoticed"),
    ],
)
def test_refusals(make: Callable[[Path], Any], why: str, log: Path) -> None:
    data = make(log)
    kind = type(data)
    loader = make_loader(data, collate_fn=list)
    ((status, reason),) = said(apply_cache(loader))
    assert (status, reason.replace("tests.apply.techniques.", "")) == ("not applicable", why)
    assert type(data) is kind


def test_a_data_set_for_each_epoch_is_given_up_once(log: Path) -> None:
    applied = apply_cache(make_loader(Quick(log)))
    for _ in range(4):
        loader = make_loader(Quick(log))
        applied.applier.loader_built(loader)
        epoch_of(loader)
        applied.after_step()
    assert [status for status, _ in said(applied)] == ["applied", "not applicable"]


def test_the_end_in_a_worker_reaches_the_training(log: Path) -> None:
    loader = make_loader(SometimesDrawing(log), num_workers=2, persistent_workers=True)
    applied = apply_cache(loader)
    epoch_of(loader)
    applied.after_step()
    before = reads_of(log)
    epoch_of(loader)
    assert reads_of(log) - before == COUNT


def test_a_data_set_that_the_script_changes_is_read_again(log: Path) -> None:
    data = Reading(log)
    loader = make_loader(data)
    applied = apply_cache(loader)
    data.scale = 2.0  # nothing is kept yet
    assert float(epoch_of(loader)[0]["x"][1, 0]) == 2.0
    data.scale = 3.0
    assert float(epoch_of(loader)[0]["x"][1, 0]) == 3.0
    applied.after_step()


def test_a_file_opened_at_the_first_read_is_no_change(log: Path) -> None:
    class Lazy(Reading):
        file: Any = None

        def __getitem__(self, i: int) -> Any:
            if self.file is None:
                self.file = open(os.devnull)  # noqa: SIM115
            return super().__getitem__(i)

    data = Lazy(log)
    loader = make_loader(data, num_workers=2)
    applied = apply_cache(loader)
    for _ in range(3):
        epoch_of(loader)
    applied.after_step()
    assert [status for status, _ in said(applied)] == ["applied"]


def test_samples_as_quick_to_read_as_to_copy_are_not_kept(log: Path) -> None:
    loader = make_loader(Quick(log))
    applied = apply_cache(loader)
    epoch_of(loader)
    applied.after_step()
    assert "copied from the cache in" in said(applied)[-1][1]


def test_the_object_looks_and_copies_as_before(log: Path) -> None:
    data = Reading(log)
    attributes = dict(vars(data))
    apply_cache(make_loader(data))
    assert isinstance(data, Reading)
    assert type(data).__name__ == "Reading"
    assert vars(data) == attributes
    assert type(copy.copy(data)) is Reading
    assert type(copy.deepcopy(data)) is Reading
    assert type(pickle.loads(pickle.dumps(data))) is Reading
    assert alike(type(data)(log)[3], data[3])  # another one of its class has nothing to do with the cache


def test_a_full_cache_reads_the_rest_as_before(log: Path) -> None:
    loader = make_loader(Slow(log))
    applied = apply_cache(loader, most_bytes=9 * (1 << 17))
    assert "of which about" in said(applied)[0][1]
    first = epoch_of(loader)
    before = reads_of(log)
    assert alike(first, epoch_of(loader))
    assert 0 < reads_of(log) - before < COUNT


class Slow(Reading):
    def __getitem__(self, i: int) -> Any:
        return {**super().__getitem__(i), "large": torch.full((1 << 15,), float(i)), "more": sum(range(200_000))}


def test_no_file_descriptor_and_no_memory_is_left(log: Path) -> None:
    script = f"""
import gc, os, torch
from torch.utils.data import DataLoader
from tests.apply.techniques.test_cache_samples import Reading, apply_cache
def count():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), sum("zero (deleted)" in line for line in open("/proc/self/maps"))
def one():
    loader = DataLoader(Reading({str(log)!r}), batch_size=4)
    applied = apply_cache(loader)
    assert applied.records[0].status == "applied"
    list(loader)
one()
before = count()
for _ in range(5):
    one()
assert count() == before, (count(), before)
"""
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", script], cwd=root, check=True)
