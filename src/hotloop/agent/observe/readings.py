"""Files of /proc and the accelerator's allocator -> memory, idle cores and network traffic, as numbers.

Nothing here imports torch: what needs it is answered only where the program has imported it.
"""

from __future__ import annotations

import os
import sys

MEMORY_PATH = "/proc/self/statm"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def resident_bytes() -> int | None:
    """Resident memory of this process; None where /proc does not give it."""
    try:
        with open(MEMORY_PATH, "rb") as file:
            return read_resident(file.read())
    except OSError:
        return None


def read_resident(statm: bytes) -> int | None:
    """Bytes of resident memory in the text of /proc/self/statm.

    >>> read_resident(b"3 2 1 0 0 0 0") == 2 * _PAGE_BYTES, read_resident(b"")
    (True, None)
    """
    fields = statm.split(None, 2)
    return int(fields[1]) * _PAGE_BYTES if len(fields) > 1 else None


def device_memory(device_index: int | None = None) -> dict[str, int] | None:
    """Bytes of the caching allocator of a CUDA, ROCm or XPU device; None without one. Never synchronizes.

    None as index means the current device. Which one is current is a property of each thread: another thread than the
    training's must name it.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    device = next((d for kind in ("cuda", "xpu") if (d := getattr(torch, kind, None)) and d.is_initialized()), None)
    if device is None:
        return None
    if device_index is None:
        device_index = device.current_device()
    stats = device.memory_stats(device_index)
    return {
        "allocated": stats.get("allocated_bytes.all.current", 0),
        "reserved": stats.get("reserved_bytes.all.current", 0),
        "peak": stats.get("allocated_bytes.all.peak", 0),
        "total": device.get_device_properties(device_index).total_memory,
        "retries": stats.get("num_alloc_retries", 0),
    }
