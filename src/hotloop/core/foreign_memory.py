"""A process's number and addresses -> the bytes at these addresses, without stopping the process (Linux).

The kernel allows it for processes of the same user; if Yama's ``ptrace_scope`` is 1, only for descendants.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

Span = tuple[int, int]
"""Address and length in bytes."""


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _load() -> Any:
    try:
        call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except (AttributeError, OSError, TypeError):  # not Linux
        return None
    call.restype = ctypes.c_ssize_t
    call.argtypes = (ctypes.c_int, *(ctypes.c_void_p, ctypes.c_ulong) * 2, ctypes.c_ulong)
    return call


_read = _load()


def prepare_read(pid: int, spans: Sequence[Span]) -> tuple[Callable[[], int], tuple[Any, ...]]:
    """A function that reads all spans in one kernel call and returns the number of bytes that it read; and the buffer
    for them, with everything that must be kept as long.

    The call runs no Python. Raises OSError if the system has no such call.
    """
    if _read is None:
        raise OSError("this system does not read another process's memory")
    buffer = ctypes.create_string_buffer(sum(length for _, length in spans))
    local = _Vector(ctypes.addressof(buffer), len(buffer))
    remote = (_Vector * len(spans))(*(_Vector(*span) for span in spans))
    call = functools.partial(_read, pid, ctypes.addressof(local), 1, ctypes.addressof(remote), len(spans), 0)
    return call, (buffer, local, remote)


def read_spans(pid: int, spans: Sequence[Span]) -> bytes:
    """The bytes of all spans one after the other, as they were at one moment to within about 100 ns per KiB.

    Raises OSError: not allowed, no such process, no such memory.
    """
    call, (buffer, *_kept) = prepare_read(pid, spans)
    done = call()
    if done != len(buffer):
        number = ctypes.get_errno() if done < 0 else 0
        raise OSError(number, os.strerror(number) if number else "some of the memory is not there")
    return bytes(buffer.raw)
