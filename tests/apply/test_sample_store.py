"""Samples as records: equal bits back, and stores that are bounded, shared between forks, and whole after a kill."""

import os
import pickle
import random
import signal
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotloop.apply.loader_samples import alike
from hotloop.apply.sample_store import MISSING, BadRecord, FolderStore, MemoryStore, NotPlain, decode, encode

SIZE = 1000
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(-(2**63), 2**63), inner)
    ),
    max_leaves=12,
)


@given(plain_values, st.integers(0, 2**40))
def test_plain_values_come_back(value: Any, key: int) -> None:
    found = decode(encode(value, key), key)
    assert alike(value, found)
    assert repr(value) == repr(found)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4).t(),
        torch.randn(8, 9, 3).permute(2, 0, 1)[:, 2:6, 1:5],
        torch.randn(1, 7, 1).permute(2, 0, 1),
        torch.ones(1).expand(4),
        torch.zeros(0, 3),
        torch.tensor(5),
        torch.tensor([1.5, float("nan"), -0.0]).to(torch.bfloat16),
        torch.tensor([True, False]),
        torch.randn(4, dtype=torch.complex64),
    ],
)
def test_tensors_come_back_and_batch_alike(tensor: torch.Tensor) -> None:
    found = decode(encode([tensor], 3), 3)[0]
    assert alike(tensor, found)
    batch, again = torch.stack([tensor, tensor]), torch.stack([found, found])
    assert alike(batch, again)
    assert batch.stride() == again.stride()
    assert found.is_contiguous() or found.stride() == tensor.clone().stride()


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(6)[::-2],
        np.array(["a", "bc"]),
        np.array(3, dtype=">i2"),
        np.float32(2.5),
        np.bool_(True),
        np.zeros((2, 0)),
    ],
)
def test_arrays_come_back(array: Any) -> None:
    found = decode(encode({"a": array}, 0), 0)["a"]
    assert type(found) is type(array)
    assert alike(array, found)
    if isinstance(found, np.ndarray):
        assert found.flags.writeable


def nest(levels: int) -> Any:
    deep: Any = 1
    for _ in range(levels):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    "sample",
    [
        {1, 2},
        object(),
        [np.array([object()])],
        {(1, 2): 3},
        torch.ones(2, requires_grad=True),
        torch.ones(2, 2).to_sparse(),
        np.datetime64("2026-01-01"),
        1j,
        nest(100),
    ],
)
def test_what_has_no_plain_form_is_named(sample: Any) -> None:
    with pytest.raises(NotPlain, match="a sample "):
        encode(sample, 0)


def test_damaged_records_raise_bad_record() -> None:
    draw = random.Random(1)
    good = encode({"x": torch.arange(50.0), "n": np.arange(9), "b": b"abc", "l": [1, (2, "three")]}, 5)
    with pytest.raises(BadRecord, match="no record of sample 6"):
        decode(good, 6)
    for _ in range(400):
        bad = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            bad[draw.randrange(len(bad))] = draw.randrange(256)
        bad = bad[: draw.randint(0, len(bad))] if draw.random() < 0.3 else bad
        try:
            decode(bytes(bad), 5)
        except BadRecord:
            continue
        assert bad == good


@pytest.mark.parametrize("function", [os.getcwd, print, torch.load])
def test_a_record_runs_no_function_of_others(function: Any) -> None:
    class Calls:
        def __reduce__(self) -> Any:
            return function, ()

    content = pickle.dumps(Calls())
    record = struct.pack("<QQI", 1, 20 + len(content), zlib.crc32(content)) + content
    with pytest.raises(BadRecord, match="has no place in a record"):
        decode(record, 1)


def record(key: int) -> bytes:
    return encode(torch.full((SIZE,), float(key)), key)


def in_children(count: int, work: Any) -> None:
    """``work(number)`` in so many forked processes at once."""
    pids = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                work(number)
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


def held(store: Any, count: int) -> list[int]:
    found = []
    for key in range(count):
        sample = store.get(key)
        if sample is not MISSING:
            assert sample.tolist() == [float(key)] * SIZE
            found.append(key)
    return found


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_processes_fill_one_store_and_keep_to_its_bound(kind: str, tmp_path: Path) -> None:
    bound = 1 << 20
    store: Any = MemoryStore(600, bound, 4 * SIZE) if kind == "memory" else FolderStore(str(tmp_path), bound, 4 * SIZE)
    in_children(3, lambda number: [store.put(key, record(key)) for key in range(number, 600, 3)])
    keys = held(store, 600)
    assert store.count() == len(keys)
    assert 0.7 * bound < sum(len(record(key)) for key in keys) <= bound
    if kind == "folder":
        sizes = sum(path.stat().st_size for path in tmp_path.rglob("*.sample"))
        assert sizes <= bound
        later = FolderStore(str(tmp_path), sizes + len(record(0)) + 100, 4 * SIZE)  # room for one more
        missing = [key for key in range(600) if key not in keys]
        assert [later.put(key, record(key)) for key in missing[:3]] == [True, False, False]
        assert later.room.is_over


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_killed_writer_leaves_whole_records_or_none(tmp_path: Path) -> None:
    for _ in range(5):
        store = FolderStore(str(tmp_path), 1 << 30)
        pid = os.fork()
        if pid == 0:
            for key in range(100_000):
                store.put(key, record(key))
            os._exit(0)
        until = time.monotonic() + 20
        while store.get(3) is MISSING and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert held(store, 4) == [0, 1, 2, 3]
    for path in tmp_path.rglob("*.sample"):
        assert path.stat().st_size == len(record(0))


def test_files_that_are_no_records_are_missing_and_written_anew(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path), 1 << 22)
    assert store.put(5, record(5))
    (path,) = tmp_path.rglob("*.sample")
    for content in (b"", b"no record", record(6), record(5)[:-70]):
        path.write_bytes(content)
        assert store.get(5) is MISSING
    assert store.put(5, record(5))
    assert held(store, 6) == [5]
