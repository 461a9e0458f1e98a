"""Files of /proc and the accelerator's allocator -> memory, idle cores and network traffic, as numbers.

Nothing here imports torch: what needs it is answered only where the program has imported it.
"""

from __future__ import annotations

import os
import sys

MEMORY_PATH = "/proc/self/statm"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class ProcFile:
    """A small file of /proc, read again and again without opening it each time; it belongs to one process."""

    def __init__(self, path: str) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = -1

    def read(self) -> bytes:
        """What it holds now; nothing where there is no such file."""
        try:
            return os.pread(self._descriptor, 16384, 0) if self._descriptor >= 0 else b""
        except OSError:
            return b""


def run_delay_in(schedstat: bytes) -> int | None:
    """Time on the run queue in ns, from a thread's schedstat: ready, but without a core. None where it does not tell.

    >>> run_delay_in(b"5000 700 3\\n")
    700
    """
    words = schedstat.split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else None


def resident_bytes() -> int | None:
    """Resident memory of this process; None where /proc does not tell."""
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
    """Bytes of the caching allocator of a CUDA, ROCm or XPU device; None without one. Never synchronises.

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


def network_counters(device_table: bytes, speeds: dict[str, int | None]) -> dict[str, dict[str, int | None]]:
    """Bytes received and sent by each network interface, and its nominal speed in bytes per second.

    ``device_table`` is the text of /proc/net/dev; ``speeds`` remembers the speeds: asking a driver takes long.
    """
    found: dict[str, dict[str, int | None]] = {}
    for line in device_table.decode("ascii", "replace").splitlines()[2:34]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) < 9:
            continue
        name = name.strip()
        if name not in speeds:
            speeds[name] = interface_speed(name)
        found[name] = {
            "rx_bytes": int(fields[0]),
            "tx_bytes": int(fields[8]),
            "speed_bytes_per_s": speeds[name],
        }
    return found


def interface_speed(name: str, root: str = "/sys/class/net") -> int | None:
    """Bytes per second; None where no hardware stands behind it: one end of a virtual cable, as in every container,
    states 10 Gbit/s whatever carries it. A bond or a VLAN has the interfaces below it."""
    folder = f"{root}/{name}"
    try:
        if not any(entry == "device" or entry.startswith("lower_") for entry in os.listdir(folder)):
            return None
        with open(f"{folder}/speed") as file:
            megabits_per_s = int(file.read())
    except (OSError, ValueError):
        return None
    return megabits_per_s * 125_000 if megabits_per_s > 0 else None
