"""A process that ran out of memory -> one fact: where, how much it asked for, and what its tensors held."""

from __future__ import annotations

import re
import sys
from typing import Any

from hotloop.core.stack_layout import Place

from .places import is_user_code

OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|cannot allocate memory|std::bad_alloc", re.I)
DEVICE = re.compile(r"\b(cuda|hip|xpu|mps|npu)\b", re.I)
UNIT_BYTES = {"": 1, "b": 1, "byte": 1, "bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
AMOUNTS = {
    "asked_bytes": r"(?:tried|unable) to allocate {}",
    "total_bytes": r"total capacity of {}",
    "free_bytes": r"of which {} is free",
    "used_bytes": r"{} is allocated by PyTorch",
    "unallocated_bytes": r"{} is reserved by PyTorch but unallocated",
}
"""Phrases in the texts of torch's allocators and numpy's, by the name of the fact."""


def uncaught_error() -> tuple[type[BaseException], BaseException | None] | None:
    """The exception that ends this process, from the interpreter's own note (set before it is printed)."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    kind = getattr(sys, "last_type", None) or (type(error) if error is not None else None)
    return (kind, error) if isinstance(kind, type) else None


def is_out_of_memory(kind: type[BaseException], error: BaseException | None) -> bool:
    """Whether this exception says that memory could not be had, on the host or on a device."""
    return (
        issubclass(kind, MemoryError)
        or kind.__name__ == "OutOfMemoryError"
        or (issubclass(kind, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None)
    )


def read_amounts(text: str) -> dict[str, int]:
    """Bytes by the names of AMOUNTS, as far as the text of an allocator's error has them.

    >>> read_amounts("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 8.00 GiB")
    {'asked_bytes': 2684354560, 'total_bytes': 8589934592}
    >>> read_amounts("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes.")
    {'asked_bytes': 4096}
    """
    found = {}
    for name, pattern in AMOUNTS.items():
        match = re.search(pattern.format(r"(\d+(?:\.\d+)?) ?([KMGT]?i?b(?:ytes?)?)\b"), text, re.I)
        unit = UNIT_BYTES.get(match[2].lower()) if match else None
        if match and unit:
            found[name] = round(float(match[1]) * unit)
    return found


def describe_memory_end() -> dict[str, Any] | None:
    """The fact ``out_of_memory``; None where the process did not end for want of memory."""
    ended = uncaught_error()
    if ended is None or not is_out_of_memory(*ended):
        return None
    text = "" if ended[1] is None else str(ended[1])
    named = None if issubclass(ended[0], MemoryError) or "CPUAllocator" in text else DEVICE.search(text)
    # ROCm's torch calls its devices cuda.
    device = "cpu" if named is None else named[1].lower().replace("hip", "cuda")
    return {
        "kind": "out_of_memory",
        "device": device,
        "where": _place_of(ended[1]),
        "peak_bytes": peak_resident_bytes() if device == "cpu" else None,
        **read_amounts(text),
    }


def peak_resident_bytes() -> int | None:
    """Highest resident memory of this process so far."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


def _place_of(error: BaseException | None) -> Place | None:
    """The innermost line of the user's own code that the exception passed."""
    place, trace = None, None if error is None else error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_user_code(code):
            place = (code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    return place
