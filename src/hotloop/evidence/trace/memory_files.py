"""A memory snapshot or a raw memory timeline of PyTorch -> a MemoryFile for the report.

A separate process reads a snapshot, which is a pickle (memory_snapshot.py says what such a file may not do).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np

from hotloop.core.decode import decode
from hotloop.core.errors import RecordingError, TraceError
from hotloop.core.graph import CategoryMemory
from hotloop.core.memory_snapshot import TIMELINE_ACTIONS, TIMELINE_CATEGORIES, MemoryFile
from hotloop.core.trace import TraceNote

from .byte_source import ByteSource

SNAPSHOT_SUFFIXES = (".pickle", ".pkl")
TIMELINE_SUFFIXES = (".raw.json.gz", ".raw.gz", ".raw.json")

MOST_FILE_BYTES = 2 << 30
"""Of a snapshot, and of an unpacked timeline."""
LEAST_MEMORY_BYTES, MEMORY_RATIO = 1 << 30, 50
"""Reading a snapshot may take this much memory, plus this many bytes per byte of the file; real ones take about 10."""
LEAST_S, BYTES_PER_S = 30, 1 << 20
"""And this long, plus a second for this many bytes; real ones take a tenth of it."""


def is_memory_file(path: str) -> bool:
    """Whether a name is that of a snapshot or a timeline, or a JSON file is a list of lists, which no trace is."""
    name = path.lower()
    if name.endswith((*SNAPSHOT_SUFFIXES, *TIMELINE_SUFFIXES)):
        return True
    if not name.endswith((".json", ".json.gz")):
        return False
    try:
        with ByteSource(Path(path)) as source:
            return source.read(64)[:64].translate(None, b" \t\r\n").startswith(b"[[")
    except (OSError, TraceError):
        return False


def read_memory_file(path: Path) -> tuple[MemoryFile, tuple[TraceNote, ...]]:
    """The content of the file. Raises RecordingError in one line if it is neither, or costs too much to read."""
    try:
        size_bytes = path.stat().st_size
        if not size_bytes:
            raise RecordingError(f"{path} is empty.")
        if size_bytes > MOST_FILE_BYTES:
            raise RecordingError(
                f"{path} has {size_bytes >> 20} MiB, more than the limit of {MOST_FILE_BYTES >> 20} MiB. Record "
                "fewer events: torch.cuda.memory._record_memory_history(max_entries=100000)."
            )
        if path.name.lower().endswith(SNAPSHOT_SUFFIXES):
            return _read_snapshot(path, size_bytes)
        return _read_timeline(path), ()
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror or error}.") from error


def _read_snapshot(path: Path, size_bytes: int) -> tuple[MemoryFile, tuple[TraceNote, ...]]:
    memory_bytes = LEAST_MEMORY_BYTES + MEMORY_RATIO * size_bytes
    seconds = LEAST_S + size_bytes // BYTES_PER_S
    # Without -P, Python would import modules from the user's current folder.
    words = [
        sys.executable,
        "-P",
        "-m",
        "hotloop.evidence.trace.memory_snapshot",
        str(path),
        str(memory_bytes),
        str(seconds),
    ]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise RecordingError(f"{path} was not read: reading it took longer than {seconds} s.") from None
    if done.returncode:
        raise RecordingError(f"{path} was not read: the process that read it failed (exit code {done.returncode}).")
    told = json.loads(done.stdout)
    if "error" in told:
        raise RecordingError(told["error"])
    return decode(MemoryFile, told["file"]), decode(tuple[TraceNote, ...], told["notes"])


# The raw timeline


def _read_timeline(path: Path) -> MemoryFile:
    """Of torch.profiler's export_memory_timeline(), one device, plain or gzip."""
    with ByteSource(path) as source:
        text = source.read(MOST_FILE_BYTES + 1)
        if source.damage is not None:
            raise RecordingError(f"{path} cannot be read: {source.damage}.")
    if len(text) > MOST_FILE_BYTES:
        raise RecordingError(f"{path} was not read: it unpacks to more than {MOST_FILE_BYTES >> 20} MiB.")
    try:
        rows = msgspec.json.decode(text, type=list[tuple[int, int, int, int]])
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        _, action, size_bytes, category = table.T
        known = (action >= 1) & (action <= len(TIMELINE_ACTIONS)) & (abs(size_bytes) < 1 << 50)
        if not (known & (category >= 0) & (category < len(TIMELINE_CATEGORIES))).all():
            raise ValueError("an action, a size or a category that torch does not have")
    except (ValueError, OverflowError, RecursionError) as error:
        raise RecordingError(
            f"{path} is not a raw memory timeline, a list of (time, action, bytes, category): {error}. A timeline "
            'that is already summed by time says too little. Export it with export_memory_timeline("NAME.raw.json.gz").'
        ) from error
    levels = np.cumsum(size_bytes)
    peak_row = int(np.argmax(levels)) if len(rows) else -1
    peak_bytes = max(0, int(levels[peak_row])) if len(rows) else 0
    before = np.arange(len(rows)) <= (peak_row if peak_bytes else -1)
    categories = []
    for number, name in enumerate(TIMELINE_CATEGORIES):
        mine = category == number
        if mine.any():
            own_levels = np.cumsum(size_bytes[mine])
            categories.append(
                CategoryMemory(
                    category=name,
                    at_peak_bytes=int(size_bytes[mine & before].sum()),
                    own_peak_bytes=max(0, int(own_levels.max())),
                    final_bytes=int(own_levels[-1]),
                )
            )
    categories.sort(key=lambda one: (-one.at_peak_bytes, one.category))
    return MemoryFile(source=path.name, kind="timeline", peak_bytes=peak_bytes, categories=tuple(categories))
