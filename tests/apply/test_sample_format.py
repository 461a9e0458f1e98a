"""Records of samples: equal bits and layout back, and nothing but an error from bytes that are no record."""

import json
import random
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotloop.apply.loader_samples import alike
from hotloop.apply.sample_format import BadRecord, NotPlain, decode, encode

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
        torch.randn(3, 4),
        torch.randn(3, 4).t(),
        torch.randn(8, 9, 3).permute(2, 0, 1),
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
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(6)[::-2],
        np.array(["a", "bc"]),
        np.array(3, dtype=">i2"),
        np.float32(2.5),
        np.int64(7),
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
        2**80,
        1j,
    ],
)
def test_what_has_no_plain_form_is_named(sample: Any) -> None:
    with pytest.raises(NotPlain, match="a sample "):
        encode(sample, 0)


def test_what_is_too_deep_is_refused() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    with pytest.raises(NotPlain, match="nested more than 32 deep"):
        encode(deep, 0)


def test_damaged_records_raise_bad_record() -> None:
    draw = random.Random(1)
    good = encode({"x": torch.arange(50.0), "n": np.arange(9), "b": b"abc", "l": [1, (2, "three")]}, 5)
    with pytest.raises(BadRecord, match="no record of sample 6"):
        decode(good, 6)
    for check in (True, False):
        for _ in range(400):
            bad = bytearray(good)
            for _ in range(draw.randint(1, 4)):
                bad[draw.randrange(len(bad))] = draw.randrange(256)
            bad = bad[: draw.randint(0, len(bad))] if draw.random() < 0.3 else bad
            try:
                decode(bad, 5, check=check)
            except BadRecord:
                continue
            assert bad == good or not check


def forge(structure: Any) -> bytearray:
    """A record with any structure, its checksum right."""
    import zlib

    text = json.dumps(structure).encode()
    header = struct.Struct("<4sIQQI")
    start = -(-(header.size + len(text)) // 64) * 64
    record = bytearray(start + 64)
    record[header.size : header.size + len(text)] = text
    checksum = zlib.crc32(bytes(record[header.size :]))
    header.pack_into(record, 0, b"HLS1", checksum, 1, len(record), len(text))
    return record


@pytest.mark.parametrize(
    "structure",
    [
        ["t", "float32", [1 << 40], [1], 0],
        ["t", "float32", [4, 4], [100, 1], 0],
        ["t", "float32", [-4], [1], 0],
        ["t", "float32", [1 << 62, 1 << 62], [0, 0], 0],
        ["t", "object", [1], [1], 0],
        ["t", "float32", [4], [1], -64],
        ["t", "float32", [4], [1], 1 << 70],
        ["a", "|O8", [1], [8], 0],
        ["a", "<f4", [1 << 40], [0], 0],
        ["a", "<f4", [4], [1000], 0],
        ["b", 0, 1 << 40],
        ["b", -5, 10],
        ["d", [[["list"], 1]]],
        ["q", 1],
        [],
        {"an": "object"},
        ["l", 3],
    ],
)
def test_forged_structures_raise_bad_record(structure: Any) -> None:
    with pytest.raises(BadRecord):
        decode(forge(structure), 1)


def test_deep_json_raises_bad_record() -> None:
    structure: Any = 1
    for _ in range(300):
        structure = ["l", [structure]]
    with pytest.raises(BadRecord):
        decode(forge(structure), 1)
