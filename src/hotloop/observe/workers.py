"""Fetch and collate times of loader workers -> totals that the training process can read at any moment.

The training process owns a small table in anonymous shared memory (a memfd: nothing on disk). Forked workers inherit
it; spawned ones find it among the open files of the process that created them. Where memfd does not exist the times
are unknown.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass

_NAME = "hotloop-workers"
_SLOT = struct.Struct("<5q")  # pid, batches, fetch_ns, fetch_cpu_ns, collate_ns
_SLOTS = 512
_SIZE = _SLOT.size * _SLOTS


@dataclass(slots=True)
class FetchTotals:
    """Totals since the start, in ns, over ``batches`` batches."""

    batches: int = 0
    fetch_ns: int = 0
    fetch_cpu_ns: int = 0
    collate_ns: int = 0

    def add(self, batches: int, fetch_ns: int, fetch_cpu_ns: int, collate_ns: int) -> None:
        self.batches += batches
        self.fetch_ns += fetch_ns
        self.fetch_cpu_ns += fetch_cpu_ns
        self.collate_ns += collate_ns


class WorkerTable:
    """One slot per worker process, written by that worker alone."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._offset: int | None = None
        self._totals = FetchTotals()

    @classmethod
    def create(cls) -> WorkerTable | None:
        """The table of a training process; None where the system has no memfd."""
        if not hasattr(os, "memfd_create"):
            return None
        descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        os.posix_fallocate(descriptor, 0, _SIZE)
        # The descriptor stays open: spawned workers find the table through it.
        return cls(mmap.mmap(descriptor, _SIZE))

    @classmethod
    def of_parent(cls, parent_pid: int) -> WorkerTable | None:
        """The table of the process that created this worker; None when it has none."""
        folder = f"/proc/{parent_pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            return None
        for name in names:
            path = os.path.join(folder, name)
            try:
                if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
                    continue
                descriptor = os.open(path, os.O_RDWR)
            except OSError:
                continue
            try:
                return cls(mmap.mmap(descriptor, _SIZE))
            finally:
                os.close(descriptor)
        return None

    def add(self, fetch_ns: int, fetch_cpu_ns: int, collate_ns: int) -> None:
        """Called in a worker after each batch."""
        if self._offset is None:
            self._offset = self._claim(os.getpid())
        self._totals.add(1, fetch_ns, fetch_cpu_ns, collate_ns)
        t = self._totals
        _SLOT.pack_into(self._memory, self._offset, os.getpid(), t.batches, t.fetch_ns, t.fetch_cpu_ns, t.collate_ns)

    def _claim(self, pid: int) -> int:
        for probe in range(_SLOTS):
            offset = ((pid + probe) % _SLOTS) * _SLOT.size
            owner = _SLOT.unpack_from(self._memory, offset)[0]
            if owner in (0, pid):
                return offset
        return (pid % _SLOTS) * _SLOT.size  # more workers than slots: the oldest claim is overwritten

    def read(self) -> dict[int, FetchTotals]:
        """Totals by worker pid."""
        found = {}
        for slot in range(_SLOTS):
            pid, *values = _SLOT.unpack_from(self._memory, slot * _SLOT.size)
            if pid:
                found[pid] = FetchTotals(*values)
        return found
