"""Waiting for other processes and threads, for as long as it takes and no longer than a test should."""

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether it holds within that time."""
    deadline_s = time.monotonic() + seconds
    while not (is_so := holds()) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return is_so


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has reaped yet has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
