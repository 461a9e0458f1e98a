"""CachedDataset: the samples of its data set, each read once, and clear errors."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hotloop import CachedDataset
from hotloop.core.errors import UsageError


class Counted(Dataset[Any]):
    """Counts reads where no fingerprint sees it: reading must not look like a change of the data set."""

    reads: list[int] = []  # noqa: RUF012

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> dict[str, Any]:
        type(self).reads.append(i)
        return {"x": torch.arange(4.0) + i, "work": sum(number * number for number in range(20_000))}


@pytest.fixture(autouse=True)
def _no_reads() -> None:
    Counted.reads = []


@pytest.mark.parametrize("is_in_folder", [False, True])
def test_each_sample_is_read_once(is_in_folder: bool, tmp_path: Path) -> None:
    data = CachedDataset(Counted(), folder=tmp_path if is_in_folder else None)
    plain = [batch["x"].tolist() for batch in DataLoader(Counted(), batch_size=4)]
    for _ in range(3):
        for batch, rows in zip(DataLoader(data, batch_size=4), plain, strict=True):
            assert batch["x"].tolist() == rows
            batch["x"].zero_()
    assert data.why_ended == ""
    assert data.count_kept() == len(data) == 12
    Counted.reads = []
    list(DataLoader(data, batch_size=4))
    assert len(Counted.reads) <= 1  # hits 24 to 36: the thirty-second is read again


def test_spawned_workers_get_an_empty_cache_or_the_folder(tmp_path: Path) -> None:
    data = CachedDataset(Counted())
    list(data[i] for i in range(12))
    assert pickle.loads(pickle.dumps(data)).count_kept() == 0
    on_disk = CachedDataset(Counted(), folder=tmp_path)
    list(on_disk[i] for i in range(12))
    again = pickle.loads(pickle.dumps(on_disk))
    assert again.count_kept() == 12
    assert again[3]["x"].tolist() == [3.0, 4.0, 5.0, 6.0]


def test_an_index_error_ends_a_loop_as_without_the_cache() -> None:
    assert [int(one["x"][0]) for one in CachedDataset([{"x": torch.ones(1)}, {"x": torch.zeros(1)}])] == [1, 0]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: CachedDataset(iter([1])), "list_iterator has no index or no length"),
        (lambda: CachedDataset([1], most_bytes=10), "most_bytes is 10; give at least 65536, or None"),
        (lambda: CachedDataset([{1, 2}]), "a sample contains set, which has no plain record; return tensors"),
        (lambda: CachedDataset([1], folder="/dev/null/here"), "the cache cannot be opened (Not a directory)"),
    ],
)
def test_bad_input_gets_one_clear_error(make: Any, text: str) -> None:
    with pytest.raises(UsageError, match="CachedDataset: ") as caught:
        make()
    assert text in str(caught.value)
