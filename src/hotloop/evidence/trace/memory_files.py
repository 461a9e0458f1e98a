"""A memory snapshot of PyTorch -> a MemoryFile for the report.

A separate process reads a snapshot, which is a pickle (memory_snapshot.py says what such a file may not do).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from hotloop.core.decode import decode
from hotloop.core.errors import RecordingError
from hotloop.core.memory_snapshot import MemoryFile
from hotloop.core.trace import TraceNote

SNAPSHOT_SUFFIXES = (".pickle", ".pkl")

MOST_FILE_BYTES = 2 << 30
LEAST_MEMORY_BYTES, MEMORY_RATIO = 1 << 30, 50
"""Reading a snapshot may take this much memory, plus this many bytes per byte of the file; real ones take about 10."""
LEAST_S, BYTES_PER_S = 30, 1 << 20
"""And this long, plus a second for this many bytes; real ones take a tenth of it."""


def is_memory_file(path: str) -> bool:
    """Whether a name is that of a snapshot."""
    return path.lower().endswith(SNAPSHOT_SUFFIXES)


def read_memory_file(path: Path) -> tuple[MemoryFile, tuple[TraceNote, ...]]:
    """The content of the file. Raises RecordingError in one line if it is none, or costs too much to read."""
    try:
        size_bytes = path.stat().st_size
        if not size_bytes:
            raise RecordingError(f"{path} is empty.")
        if size_bytes > MOST_FILE_BYTES:
            raise RecordingError(
                f"{path} has {size_bytes >> 20} MiB, more than the limit of {MOST_FILE_BYTES >> 20} MiB. Record "
                "fewer events: torch.cuda.memory._record_memory_history(max_entries=100000)."
            )
        return _read_snapshot(path, size_bytes)
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
