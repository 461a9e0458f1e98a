"""Samples as records in memory that forked processes share, or in a folder; both bounded, and without locks.

A record is a header (key, length, checksum) and a pickle whose only functions are two of this module, which build
tensors and arrays: reading one runs nothing else. Lists, tuples, dictionaries, strings, bytes, numbers, tensors and
numpy arrays have a record; whatever else a sample holds raises NotPlain.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import math
import mmap
import os
import pickle
import struct
import sys
import threading
import types
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hotloop.core.machine import read_free_bytes

DEEPEST = 32
MOST_PIECES = 256
LEAST_IN_PIECE = 4
"""Samples that a piece has room for, as far as the budget allows: its rest is lost."""
MEMORY_PART, DISK_PART = 4, 2
"""A cache takes this part of what is free, unless it is given a size."""
UNKNOWN_BYTES = 1 << 28
"""Its size where the system does not tell what is free."""
FORMAT = 2
"""Of the records in a folder."""

_HEADER = struct.Struct("<QQI")  # key, bytes of the whole record, crc32 of what follows the header
_NUMBER = struct.Struct("<I")
_UNIT = 64
_NUMPY_KINDS = "biufcSU"


class NotPlain(Exception):
    """A sample holds something without a plain form; the text names it."""


class BadRecord(Exception):
    """Bytes that are no record of this key: cut short, overwritten, or made by somebody else."""


# -- records -----------------------------------------------------------------------------------------------------------


def encode(sample: Any, key: int) -> bytes:
    """The record of a sample. Raises NotPlain.

    >>> decode(encode({"x": torch.ones(2), "y": (3, "four")}, 7), 7)
    {'x': tensor([1., 1.]), 'y': (3, 'four')}
    """
    content = pickle.dumps(_pack(sample, 0), protocol=5)
    return _HEADER.pack(key, _HEADER.size + len(content), zlib.crc32(content)) + content


def decode(record: Any, key: int, *, check: bool = True) -> Any:
    """The sample of a buffer that begins with its record: new objects, which share no memory with it.

    Raises BadRecord. ``check`` False trusts the checksum, for memory that only this training writes to.
    """
    if len(record) < _HEADER.size:
        raise BadRecord(f"{len(record)} bytes are no record")
    its_key, length, checksum = _HEADER.unpack_from(record, 0)
    if its_key != key or not _HEADER.size < length <= len(record):
        raise BadRecord(f"no record of sample {key}")
    content = bytes(record[_HEADER.size : length])
    if check and zlib.crc32(content) != checksum:
        raise BadRecord(f"the checksum of sample {key} is wrong")
    try:
        return _Reader(io.BytesIO(content)).load()
    except Exception as error:  # whatever damaged bytes make of a pickle
        raise BadRecord(f"sample {key} cannot be read ({type(error).__name__}: {str(error)[:100]})") from error


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module != __name__ or name not in ("build_tensor", "build_array"):
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a record")
        return globals()[name]


class _Built:
    """Stands for a tensor or an array in what is pickled."""

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


# -- stores ------------------------------------------------------------------------------------------------------------


MISSING = object()
"""What a store answers for a sample that it does not hold."""


class MemoryStore:
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
            try:
                return decode(record, key, check=False)
            except BadRecord:  # another process has put it in the index, but this one does not see its bytes yet
                return MISSING

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


class FolderStore:
    """Records as files below a folder, written whole or not at all; what earlier runs left there is read again.

    ``most_bytes`` bounds all files of the folder together, ``sample_bytes`` is what one is expected to take. A file
    that is no record of its sample counts as missing. Raises OSError where the folder cannot be made.
    """

    def __init__(self, folder: str, most_bytes: int, sample_bytes: int = 0) -> None:
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        used_bytes = 0
        for path in self._files():
            with contextlib.suppress(OSError):  # another process has just replaced it
                used_bytes += os.stat(path).st_size
        self.room = SharedRoom(most_bytes - used_bytes, sample_bytes)

    def get(self, key: int) -> Any:
        """As MemoryStore's."""
        try:
            with open(self._path(key), "rb", buffering=0) as file:
                return decode(file.readall(), key)
        except (OSError, BadRecord, MemoryError):
            return MISSING

    def put(self, key: int, record: bytes) -> bool:
        """As MemoryStore's."""
        if self.room.take(len(record)) is None:
            return False
        path = self._path(key)
        draft = f"{path}.{os.getpid()}.{threading.get_ident()}.draft"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(draft, "wb", buffering=0) as file:
                file.write(record)
            os.replace(draft, path)
        except OSError:  # the disk is full, or the folder is gone
            self.room.is_over = True
            with contextlib.suppress(OSError):
                os.unlink(draft)
            return False
        return True

    def count(self) -> int:
        """As MemoryStore's."""
        return sum(path.endswith(".sample") for path in self._files())

    def _files(self) -> Iterable[str]:
        return (os.path.join(root, name) for root, _, names in os.walk(self.folder) for name in names)

    def _path(self, key: int) -> str:
        return os.path.join(self.folder, f"{key >> 10:x}", f"{key:x}.sample")


SampleStore = MemoryStore | FolderStore


class SharedRoom:
    """Bytes that forked processes share out among them.

    They are cut into pieces whose numbers lie in a pipe: taking one is a read of four bytes, which the kernel never
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
    """Size of a cache in memory for each of so many processes of this host."""
    free = read_free_bytes()
    return UNKNOWN_BYTES // processes if free is None else free // MEMORY_PART // processes


def choose_disk_bytes(folder: str, processes: int = 1) -> int:
    """Size of a cache below a folder, which exists or will, for each of so many processes of this host."""
    path = os.path.abspath(folder)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    room = os.statvfs(path)
    return room.f_bavail * room.f_frsize // DISK_PART // processes


# -- the name of a data set's folder -----------------------------------------------------------------------------------


def identify(dataset: Any) -> str:
    """A digest of all that is known to decide what a sample is: code, length, and the values of attributes.

    Two data sets of one digest may still differ in the files that they read. What has no plain value (an open file, an
    object of a library) counts by its class and by its own attributes.
    """
    digest = hashlib.sha256(f"{FORMAT} {torch.__version__} {len(dataset)}".encode())
    _add(digest, dataset, set(), depth=6)
    return digest.hexdigest()[:24]


def _add(digest: Any, value: Any, seen: set[int], depth: int) -> None:
    kind = type(value)
    digest.update(f"|{kind.__module__}.{kind.__qualname__}:".encode())
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        digest.update(value if isinstance(value, bytes) else repr(value).encode(errors="replace"))
        return
    if depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    for one in _parts(digest, value):
        _add(digest, one, seen, depth - 1)


def _parts(digest: Any, value: Any) -> Iterable[Any]:
    """What a value is made of; what it is itself goes into the digest."""
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        if value.device.type == "cpu" and value.layout is torch.strided:
            flat = value.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8)
            content = bytearray(flat.numel())
            if content:
                torch.frombuffer(content, dtype=torch.uint8).copy_(flat)
            digest.update(content)
        return []
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return [f"{value.dtype}{value.shape}", value.tobytes()]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, Mapping):
        return [one for item in value.items() for one in item]
    function = getattr(value, "__func__", value)
    if isinstance(function, types.FunctionType):
        _add_source(digest, function)
        return [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    for owner in value.__mro__ if isinstance(value, type) else type(value).__mro__:
        if owner.__module__ not in ("builtins", "typing"):
            _add_source(digest, owner)
    attributes = {} if isinstance(value, type) else getattr(value, "__dict__", {})
    return [one for item in sorted(attributes.items(), key=lambda item: str(item[0])) for one in item]


def _add_source(digest: Any, thing: Any) -> None:
    try:
        digest.update(inspect.getsource(thing).encode(errors="replace"))
    except (OSError, TypeError):  # typed at a prompt, or written in C
        digest.update(thing.__qualname__.encode())


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
