"""Samples as records in memory that forked processes share: bounded, and without locks.

A record is a header (key, length) and a pickle. Lists, tuples, dictionaries, strings, bytes, numbers, tensors and numpy
arrays have a record; whatever else a sample holds raises NotPlain.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import pickle
import struct
import sys
import threading
from typing import Any

import torch

from hotloop.core.machine import read_free_bytes

DEEPEST = 32
MOST_PIECES = 256
LEAST_IN_PIECE = 4
"""Samples that a piece has room for, within the budget: its rest is lost."""
MEMORY_PART = 4
"""A cache takes this part of what is free, unless it is given a size."""
UNKNOWN_BYTES = 1 << 28
"""Its size where the system does not say how much is free."""

_HEADER = struct.Struct("<QQ")  # key, bytes of the entire record
_NUMBER = struct.Struct("<I")
_UNIT = 64
_NUMPY_KINDS = "biufcSU"
MISSING = object()
"""Returned by a store for a sample that it does not hold."""


class NotPlain(Exception):
    """A sample holds something without a plain form; the text names it."""


# -- records -----------------------------------------------------------------------------------------------------------


def encode(sample: Any, key: int) -> bytes:
    """The record of a sample. Raises NotPlain.

    >>> decode(encode({"x": torch.ones(2), "y": (3, "four")}, 7), 7)
    {'x': tensor([1., 1.]), 'y': (3, 'four')}
    """
    content = pickle.dumps(_pack(sample, 0), protocol=5)
    return _HEADER.pack(key, _HEADER.size + len(content)) + content


def decode(record: Any, key: int) -> Any:
    """The sample of a buffer that begins with its record: new objects, which share no memory with it.

    MISSING where there is no record of this key: another process has put it in the index, but this one does not see
    its bytes yet.
    """
    its_key, length = _HEADER.unpack_from(record, 0)
    if its_key != key or not _HEADER.size < length <= len(record):
        return MISSING
    return pickle.loads(record[_HEADER.size : length])


class _Built:
    """A placeholder for a tensor or an array in what is pickled."""

    def __init__(self, build: Any, *arguments: Any) -> None:
        self.made = build, arguments

    def __reduce__(self) -> Any:
        return self.made


def _pack(value: Any, depth: int) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str, bytes):
        return value
    if depth >= DEEPEST:
        raise NotPlain(f"a sample is nested more than {DEEPEST} deep")
    if kind in (list, tuple):
        return kind(_pack(one, depth + 1) for one in value)
    if kind is dict:
        if any(type(key) not in (str, int) for key in value):
            raise NotPlain("a sample has a dictionary whose keys are neither strings nor integers")
        return {key: _pack(one, depth + 1) for key, one in value.items()}
    if kind is torch.Tensor:
        return _pack_tensor(value)
    if kind.__module__ == "numpy" and getattr(getattr(value, "dtype", None), "kind", "") in _NUMPY_KINDS:
        is_array = kind.__name__ == "ndarray"
        whole = value.copy(order="K") if is_array else value.reshape(())
        return _Built(
            build_array, whole.dtype.str, whole.shape, whole.strides, whole.ravel(order="K").tobytes(), is_array
        )
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    raise NotPlain(f"a sample contains {name}")


def _pack_tensor(tensor: torch.Tensor) -> _Built:
    """Its elements side by side in the same order of dimensions: a batch of them takes its layout from that."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise NotPlain(f"a sample contains a tensor ({tensor.dtype}, {tensor.layout}, {tensor.device})")
    if tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_nested:
        raise NotPlain("a sample contains a tensor with a gradient, or a lazily conjugated or nested one")
    whole = tensor.clone()
    content = bytearray(whole.nbytes)
    if content:
        torch.frombuffer(content, dtype=whole.dtype).copy_(whole.as_strided((whole.numel(),), (1,)))
    return _Built(build_tensor, str(whole.dtype)[6:], tuple(whole.shape), whole.stride(), bytes(content))


def build_tensor(name: str, shape: Any, strides: Any, content: bytes) -> torch.Tensor:
    """A tensor of a record."""
    dtype = getattr(torch, name)
    if not content:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=dtype).as_strided(shape, strides)


def build_array(name: str, shape: Any, strides: Any, content: bytes, is_array: bool) -> Any:
    """An array of a record, or a number of numpy's."""
    numpy = sys.modules.get("numpy")
    if numpy is None or numpy.dtype(name).kind not in _NUMPY_KINDS:
        raise ValueError(f"no numpy, or no dtype {name!r}")
    array = numpy.ndarray(shape, name, buffer=bytearray(content) if math.prod(shape) else None, strides=strides)
    return array if is_array else array[()]


# -- the store ---------------------------------------------------------------------------------------------------------


class SampleStore:
    """Records of samples 0..count-1 in anonymous shared memory: made before the workers fork, filled by all of them.

    Pages take memory when they are first written. ``most_bytes`` bounds records and index together; ``sample_bytes`` is
    what a record is expected to take. Raises OSError where the system does not give the memory.
    """

    def __init__(self, count: int, most_bytes: int, sample_bytes: int = 0) -> None:
        self.room = SharedRoom(most_bytes - 8 * count, sample_bytes)
        self._index = memoryview(mmap.mmap(-1, max(8, 8 * count))).cast("Q")
        self._data = mmap.mmap(-1, max(mmap.PAGESIZE, self.room.total_bytes))

    def get(self, key: int) -> Any:
        """The sample, new objects at each call; MISSING where it is not held."""
        place = self._index[key]
        if not place:
            return MISSING
        with memoryview(self._data)[(place - 1) * _UNIT :] as record:
            return decode(record, key)

    def put(self, key: int, record: bytes) -> bool:
        """Keep a record; False where the budget is used up."""
        start = self.room.take(-(-len(record) // _UNIT) * _UNIT)
        if start is None:
            return False
        self._data[start : start + len(record)] = record
        self._index[key] = start // _UNIT + 1  # one store of eight bytes, after the record's own
        return True

    def count(self) -> int:
        """Samples that are held."""
        return sum(1 for place in self._index if place)


class SharedRoom:
    """Bytes that forked processes share out among them.

    They are cut into pieces whose numbers are in a pipe: taking one is a read of four bytes, which the kernel never
    gives to two processes. A process that dies loses at most the piece it was filling; a forked child begins without
    one, since its parent goes on with that.
    """

    def __init__(self, room_bytes: int, sample_bytes: int) -> None:
        room_bytes = max(0, room_bytes)
        count = max(1, min(MOST_PIECES, room_bytes // (LEAST_IN_PIECE * max(1, sample_bytes))))
        self._piece_bytes = room_bytes // count // _UNIT * _UNIT
        self.total_bytes = self._piece_bytes * count
        self.is_over = False
        """Whether this process knows that nothing more can be kept."""
        self._reading, writing = os.pipe()
        os.write(writing, b"".join(_NUMBER.pack(number) for number in range(count)))  # far below a pipe's capacity
        os.close(writing)
        self._begin_process()

    def _begin_process(self) -> None:
        self._pid, self._next, self._end = os.getpid(), 0, 0
        self._lock = threading.Lock()  # a thread of the parent may have held its own at the fork

    def take(self, size: int) -> int | None:
        """Where ``size`` bytes begin; None where no piece is left, or another thread is just asking."""
        if self._pid != os.getpid():
            self._begin_process()
        if size > self._piece_bytes or self.is_over or not self._lock.acquire(blocking=False):
            return None
        try:
            if self._next + size > self._end:
                data = os.read(self._reading, _NUMBER.size)
                if not data:
                    self.is_over = True
                    return None
                self._next = _NUMBER.unpack(data)[0] * self._piece_bytes
                self._end = self._next + self._piece_bytes
            start = self._next
            self._next += size
            return start
        finally:
            self._lock.release()

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._reading)


def choose_memory_bytes(processes: int = 1) -> int:
    """Size of a cache in memory for each of that many processes of this host."""
    free = read_free_bytes()
    return UNKNOWN_BYTES // processes if free is None else free // MEMORY_PART // processes
