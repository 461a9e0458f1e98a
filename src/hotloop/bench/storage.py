"""A data folder -> Reading: how fast its files are read, within a second, and whether that was the storage.

The page cache is asked to drop what is about to be read, and asked afterwards whether it did: a speed that comes out
of memory is never called the storage's. Nothing is written.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from dataclasses import replace

from .host import Reading

BUDGET_S = 1.0
WALK_S = 0.25
PATIENCE_S = 4.0
"""A read that hangs (a network file system without its server) is given up after this long."""
MOST_BYTES = 256 << 20
CHUNK_BYTES = 1 << 20
MOST_FILES = 4096
SAMPLED_FILES = 64


def read_folder(folder: str, *, budget_s: float = BUDGET_S, most_bytes: int = MOST_BYTES) -> Reading:
    """Read a sample of the folder's files. Trouble is told in ``complaint``; nothing is raised for it."""
    reading = Reading(folder=folder)
    worker = threading.Thread(target=_read_sample, args=(reading, budget_s, most_bytes), daemon=True)
    worker.start()
    patience_s = max(PATIENCE_S, 2 * budget_s)
    worker.join(patience_s)
    if worker.is_alive():
        return replace(reading, complaint=f"a read did not finish within {patience_s:.0f} s")
    return reading


def _read_sample(reading: Reading, budget_s: float, most_bytes: int) -> None:
    start_s = time.monotonic()
    try:
        found = _find_files(reading, start_s + min(WALK_S, budget_s / 3))
        step = max(1, len(found) // SAMPLED_FILES)
        sample = sorted(found[::step][:SAMPLED_FILES])
        left = most_bytes
        # Smallest first: what they leave of their shares goes to the larger ones.
        for position, (_, path) in enumerate(sample):
            if left <= 0 or time.monotonic() - start_s >= budget_s:
                break
            share = left // (len(sample) - position)
            left -= _read_file(path, max(1, share), start_s + budget_s, reading)
    except OSError as error:
        reading.complaint = f"{reading.folder}: {error.strerror}"


def _find_files(reading: Reading, deadline_s: float) -> list[tuple[int, str]]:
    """Size in bytes and path of regular files that hold something, breadth first, links not followed."""
    waiting: list[str] = [reading.folder]
    found: list[tuple[int, str]] = []
    while waiting and len(found) < MOST_FILES and time.monotonic() < deadline_s:
        here = waiting.pop(0)
        try:
            entries = os.scandir(here)
        except OSError:
            if here == reading.folder:
                raise
            continue  # a folder that we may not read: the others are enough for a sample
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False) and (size := entry.stat(follow_symlinks=False).st_size) > 0:
                    found.append((size, entry.path))
                    reading.files_count = len(found)
                if len(found) >= MOST_FILES or time.monotonic() >= deadline_s:
                    break
    return found


def _read_file(path: str, most_bytes: int, deadline_s: float, reading: Reading) -> int:
    """Read part of one file; the bytes read. A file that cannot be read is left out of the sample."""
    start_ns = time.perf_counter_ns()
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        reading.complaint = reading.complaint or f"{path}: {error.strerror}"
        return 0
    try:
        reading.opens_ns.append(time.perf_counter_ns() - start_ns)
        reading.sampled_count += 1
        size = os.fstat(file).st_size
        # The middle of a large file: its beginning is what everybody has looked at already.
        begin = max(0, (size - most_bytes) // 2) // mmap.PAGESIZE * mmap.PAGESIZE
        length = min(size - begin, most_bytes)
        before = _resident_ratio(file, begin, length)
        if before is not None:
            reading.cached_before.append(before)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, begin, length, os.POSIX_FADV_DONTNEED)
        after = _resident_ratio(file, begin, length)
        kind = "unknown" if after is None else "cached" if after > 0.1 else "storage"
        done = 0
        while done < length and time.monotonic() < deadline_s:
            start_ns = time.perf_counter_ns()
            got = len(os.pread(file, min(CHUNK_BYTES, length - done), begin + done))
            reading.ns_by_kind[kind] += time.perf_counter_ns() - start_ns
            reading.bytes_by_kind[kind] += got
            if not got:
                break
            done += got
        return done
    except OSError as error:
        reading.complaint = reading.complaint or f"{path}: {error.strerror}"
        return 0
    finally:
        os.close(file)


def _resident_ratio(file: int, begin: int, length: int) -> float | None:
    """Share of a part of a file that is in the page cache, 0..1; None where the kernel does not tell.

    Since Linux 5.2 only those who own a file or may write it are told; for others every page counts as resident.
    """
    if length <= 0 or not hasattr(os, "geteuid") or os.fstat(file).st_uid != os.geteuid() != 0:
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        map_file, unmap, mincore = libc.mmap, libc.munmap, libc.mincore
    except (OSError, AttributeError):
        return None
    map_file.restype = ctypes.c_void_p
    map_file.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    pages = (length + mmap.PAGESIZE - 1) // mmap.PAGESIZE
    resident = (ctypes.c_ubyte * pages)()
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    address = map_file(None, length, mmap.PROT_READ, mmap.MAP_SHARED, file, begin)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    try:
        if mincore(address, length, resident) != 0:
            return None
        return sum(byte & 1 for byte in resident) / pages
    finally:
        unmap(address, length)
