"""A sample -> a record of plain bytes, and back to equal bits; nothing in a record is ever executed.

A record is a header (magic, checksum, key, lengths), the sample's structure as JSON, and its arrays, each at a multiple
of ALIGNMENT_BYTES. Lists, tuples, dictionaries, strings, bytes, numbers, tensors and numpy arrays have a form; whatever
else a sample holds raises NotPlain.
"""

from __future__ import annotations

import json
import math
import re
import struct
import sys
import zlib
from collections.abc import Mapping
from typing import Any

import torch

MAGIC = b"HLS1"
ALIGNMENT_BYTES = 64
"""What torch's allocator aligns to, and a cache line."""
DEEPEST = 32
MOST_INTEGER = 1 << 64

_HEADER = struct.Struct("<4sIQQI")  # magic, crc32 of what follows the header, key, bytes of the record, bytes of JSON
_DTYPES: Mapping[str, torch.dtype] = {
    str(one).removeprefix("torch."): one
    for one in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
        torch.float32, torch.float64, torch.complex64, torch.complex128,
    )
}  # fmt: skip
_NUMPY_KINDS = "biufcSU"
_NUMPY_DTYPE = re.compile(rf"[<>|=]?[{_NUMPY_KINDS}]\d{{1,6}}")


class NotPlain(Exception):
    """A sample holds something without a plain form; the text names it."""


class BadRecord(Exception):
    """Bytes that are no record of this key: cut short, overwritten, or made by somebody else."""


def encode(sample: Any, key: int) -> bytearray:
    """The record of a sample. Raises NotPlain.

    >>> decode(encode({"x": torch.ones(2), "y": (3, "four")}, 7), 7)
    {'x': tensor([1., 1.]), 'y': (3, 'four')}
    """
    arrays: list[tuple[Any, int]] = []
    structure = json.dumps(_describe(sample, arrays, [0], 0), separators=(",", ":")).encode()
    start = _align(_HEADER.size + len(structure))
    length = start + sum(_align(_size_bytes(array)) for array, _ in arrays)
    record = bytearray(length)
    record[_HEADER.size : _HEADER.size + len(structure)] = structure
    for array, offset in arrays:
        _write(record, start + offset, array)
    checksum = zlib.crc32(memoryview(record)[_HEADER.size :])
    _HEADER.pack_into(record, 0, MAGIC, checksum, key, length, len(structure))
    return record


def decode(record: Any, key: int, *, check: bool = True) -> Any:
    """The sample of a writable buffer that begins with its record: new objects, which share no memory with it.

    Raises BadRecord. ``check`` False trusts the checksum, for memory that only this training writes to.
    """
    if len(record) < _HEADER.size:
        raise BadRecord(f"{len(record)} bytes are no record")
    magic, checksum, its_key, length, structure_bytes = _HEADER.unpack_from(record, 0)
    start = _align(_HEADER.size + structure_bytes)
    if magic != MAGIC or its_key != key or not start <= length <= len(record):
        raise BadRecord(f"no record of sample {key}")
    with memoryview(record)[:length] as whole:
        if check and zlib.crc32(whole[_HEADER.size :]) != checksum:
            raise BadRecord(f"the checksum of sample {key} is wrong")
        try:
            structure = json.loads(bytes(whole[_HEADER.size : _HEADER.size + structure_bytes]))
            return _build(structure, whole, start, 0)
        except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, RuntimeError) as error:
            raise BadRecord(f"sample {key} cannot be read ({type(error).__name__}: {str(error)[:100]})") from error


# -- writing -----------------------------------------------------------------------------------------------------------


def _describe(value: Any, arrays: list[tuple[Any, int]], end: list[int], depth: int) -> Any:
    """The JSON of a value; its arrays are appended with their offsets, and ``end`` is where the next one begins."""
    kind = type(value)
    if value is None or kind in (bool, float, str) or (kind is int and abs(value) < MOST_INTEGER):
        return value
    if depth >= DEEPEST:
        raise NotPlain(f"a sample is nested more than {DEEPEST} deep")
    if kind in (list, tuple):
        return ["l" if kind is list else "u", [_describe(one, arrays, end, depth + 1) for one in value]]
    if kind is dict:
        if any(type(key) not in (str, int) for key in value):
            raise NotPlain("a sample has a dictionary whose keys are neither strings nor integers")
        return ["d", [[key, _describe(one, arrays, end, depth + 1)] for key, one in value.items()]]
    if kind is bytes:
        return ["b", _place(value, arrays, end), len(value)]
    if kind is torch.Tensor:
        whole = _whole_tensor(value)
        return ["t", str(whole.dtype)[6:], list(whole.shape), list(whole.stride()), _place(whole, arrays, end)]
    if kind.__module__ == "numpy" and getattr(getattr(value, "dtype", None), "kind", "") in _NUMPY_KINDS:
        is_array = kind.__name__ == "ndarray"
        whole = value.copy(order="K") if is_array else value.reshape(())
        name = "a" if is_array else "s"
        return [name, whole.dtype.str, list(whole.shape), list(whole.strides), _place(whole, arrays, end)]
    raise NotPlain(f"a sample contains {_name_kind(kind)}")


def _name_kind(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with its elements side by side in the same order of dimensions: a batch of them takes its layout from
    that."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or str(tensor.dtype)[6:] not in _DTYPES:
        raise NotPlain(f"a sample contains a tensor ({tensor.dtype}, {tensor.layout}, {tensor.device})")
    if tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_nested:
        raise NotPlain("a sample contains a tensor with a gradient, or a lazily conjugated or nested one")
    return tensor.clone()


def _place(array: Any, arrays: list[tuple[Any, int]], end: list[int]) -> int:
    offset = end[0]
    arrays.append((array, offset))
    end[0] = offset + _align(_size_bytes(array))
    return offset


def _size_bytes(array: Any) -> int:
    size: int = len(array) if type(array) is bytes else array.nbytes
    return size


def _write(record: bytearray, start: int, array: Any) -> None:
    size = _size_bytes(array)
    if not size:
        return
    if type(array) is bytes:
        record[start : start + size] = array
    elif isinstance(array, torch.Tensor):
        flat = array.as_strided((array.numel(),), (1,))
        torch.frombuffer(record, dtype=array.dtype, count=array.numel(), offset=start).copy_(flat)
    else:
        kind = type(array) if type(array).__name__ == "ndarray" else sys.modules["numpy"].ndarray
        kind(array.shape, array.dtype, buffer=record, offset=start, strides=array.strides)[...] = array


def _align(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


# -- reading -----------------------------------------------------------------------------------------------------------


def _build(node: Any, whole: memoryview, start: int, depth: int) -> Any:
    if not isinstance(node, list):
        if isinstance(node, dict):
            raise ValueError("an object")
        return node
    if depth > DEEPEST:
        raise ValueError("too deep")
    kind, rest = node[0], node[1:]
    if kind == "l":
        return [_build(one, whole, start, depth + 1) for one in rest[0]]
    if kind == "u":
        return tuple(_build(one, whole, start, depth + 1) for one in rest[0])
    if kind == "d":
        return {key: _build(one, whole, start, depth + 1) for key, one in rest[0]}
    if kind == "b":
        offset, size = _within(whole, start, rest[0], rest[1])
        return bytes(whole[offset : offset + size])
    if kind == "t":
        return _build_tensor(whole, start, *rest)
    if kind in ("a", "s"):
        array = _build_array(whole, start, *rest)
        return array if kind == "a" else array[()]
    raise ValueError(f"unknown kind {kind!r}")


def _build_tensor(whole: memoryview, start: int, name: str, shape: Any, strides: Any, offset: Any) -> torch.Tensor:
    dtype = _DTYPES[name]
    count = _count(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    place, _ = _within(whole, start, offset, count * dtype.itemsize)
    flat = torch.frombuffer(whole, dtype=dtype, count=count, offset=place)
    return flat.as_strided(shape, strides).clone()  # torch refuses strides that leave the elements


def _build_array(whole: memoryview, start: int, name: str, shape: Any, strides: Any, offset: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None or not _NUMPY_DTYPE.fullmatch(name):
        raise ValueError(f"no numpy, or no dtype {name!r}")
    dtype = numpy.dtype(name)
    place, size = _within(whole, start, offset, _count(shape) * dtype.itemsize)
    with whole[place : place + size] as part:  # numpy refuses strides that leave it
        return numpy.ndarray(shape, dtype, buffer=bytearray(part), strides=strides)


def _count(shape: Any) -> int:
    if not all(type(one) is int and one >= 0 for one in shape):
        raise ValueError("a shape")
    return math.prod(shape)


def _within(whole: memoryview, start: int, offset: Any, size: Any) -> tuple[int, int]:
    if type(offset) is not int or type(size) is not int or min(offset, size) < 0 or start + offset + size > len(whole):
        raise ValueError("beyond the record")
    return start + offset, size
