"""A memory snapshot or a raw memory timeline of PyTorch -> a MemoryFile for the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hotloop.core.graph import CategoryMemory
from hotloop.core.memory_snapshot import MemoryFile, MemoryTimeline
from hotloop.core.trace import TraceNote

from .formats.memory_snapshot import SNAPSHOT_SUFFIXES, TIMELINE_SUFFIXES, read_memory_snapshot, read_memory_timeline


def is_memory_file(path: str) -> bool:
    """Whether a name is that of a snapshot or a timeline."""
    return path.lower().endswith((*SNAPSHOT_SUFFIXES, *TIMELINE_SUFFIXES))


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
