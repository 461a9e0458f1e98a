"""Samples as records: equal bits back, and stores that are bounded, shared between forks, and whole after a kill."""

import os
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotloop.change.apply.loader_samples import alike
from hotloop.change.apply.sample_store import MISSING, NotPlain, SampleStore, decode, encode

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
def test_processes_fill_one_store_and_keep_to_its_bound() -> None:
    bound = 1 << 20
    store = SampleStore(600, bound, 4 * SIZE)
    in_children(3, lambda number: [store.put(key, record(key)) for key in range(number, 600, 3)])
    keys = held(store, 600)
    assert store.count() == len(keys)
    assert 0.7 * bound < sum(len(record(key)) for key in keys) <= bound
