"""A memory snapshot or a raw memory timeline of PyTorch -> a MemoryFile for the report."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from pathlib import Path

from hotloop.core.graph import CategoryMemory
from hotloop.core.memory_snapshot import MemoryFile, MemoryTimeline
from hotloop.core.trace import TraceNote

from .formats.memory_snapshot import SNAPSHOT_SUFFIXES, TIMELINE_SUFFIXES, read_memory_snapshot, read_memory_timeline


def is_memory_file(path: str) -> bool:
    """Whether a name is that of a snapshot or a timeline, or a JSON file is a list of lists: no trace is one."""
    name = path.lower()
    if name.endswith((*SNAPSHOT_SUFFIXES, *TIMELINE_SUFFIXES)):
        return True
    return name.endswith((".json", ".json.gz")) and _begins_with_rows(path)


def _begins_with_rows(path: str) -> bool:
    try:
        if not os.path.isfile(path):
            return False
        with gzip.open(path) if path.lower().endswith(".gz") else open(path, "rb") as file:
            return file.read(64).translate(None, b" \t\r\n").startswith(b"[[")
    except (OSError, EOFError, ValueError, zlib.error):
        return False


def read_memory_file(
    path: Path, list_categories: Callable[[MemoryTimeline], tuple[CategoryMemory, ...]]
) -> tuple[MemoryFile, tuple[TraceNote, ...]]:
    """What the file says. Raises RecordingError in one line for one that is neither."""
    if path.name.lower().endswith(SNAPSHOT_SUFFIXES):
        snapshot = read_memory_snapshot(path)
        file = MemoryFile(
            source=path.name,
            kind="snapshot",
            devices=snapshot.devices,
            largest_blocks=snapshot.largest_blocks,
            out_of_memory=snapshot.out_of_memory,
        )
        return file, snapshot.notes
    timeline = read_memory_timeline(path)
    file = MemoryFile(
        source=path.name,
        kind="timeline",
        peak_bytes=timeline.peak_bytes,
        categories=list_categories(timeline),
    )
    return file, timeline.notes
