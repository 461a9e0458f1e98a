"""Memory snapshots and raw memory timelines of PyTorch -> a Report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hotloop import __version__
from hotloop.analyze.timeline.memory import list_categories
from hotloop.core.memory_snapshot import MemoryFile
from hotloop.core.redact import redact_text
from hotloop.core.report import Health, Report
from hotloop.core.trace import TraceNote
from hotloop.diagnose.wording import say_bytes
from hotloop.trace.formats.memory_snapshot import (
    SNAPSHOT_SUFFIXES,
    TIMELINE_SUFFIXES,
    read_memory_snapshot,
    read_memory_timeline,
)


def is_memory_file(path: str) -> bool:
    """Whether a name is that of a snapshot or a timeline."""
    return path.lower().endswith((*SNAPSHOT_SUFFIXES, *TIMELINE_SUFFIXES))


def report_memory_files(paths: Sequence[Path], command: tuple[str, ...] = ()) -> Report:
    """What the files say. Raises RecordingError in one line for a file that is none of the two."""
    read = [_read(path) for path in paths]
    files = tuple(one for one, _ in read)
    return Report(
        tool_version=__version__,
        command=command,
        environment={},
        outcome=None,
        verdict=_describe(files[0]),
        step=None,
        breakdown=None,
        device=None,
        memory=None,
        ranks=(),
        findings=(),
        combined_saving=None,
        forecast_history={"n": 0, "median_abs_error": None},
        skipped=(),
        health=tuple(Health(level=n.level, message=redact_text(n.message)) for _, notes in read for n in notes),
        overhead=None,
        next_command=None,
        memory_files=files,
    )


def _read(path: Path) -> tuple[MemoryFile, tuple[TraceNote, ...]]:
    if path.name.lower().endswith(SNAPSHOT_SUFFIXES):
        snapshot = read_memory_snapshot(path)
        told = MemoryFile(
            source=path.name,
            kind="snapshot",
            devices=snapshot.devices,
            largest_blocks=snapshot.largest_blocks,
            out_of_memory=snapshot.out_of_memory,
            peak_bytes=None,
            categories=(),
        )
        return told, snapshot.notes
    timeline = read_memory_timeline(path)
    told = MemoryFile(
        source=path.name,
        kind="timeline",
        devices=(),
        largest_blocks=(),
        out_of_memory=(),
        peak_bytes=timeline.peak_bytes,
        categories=list_categories(timeline),
    )
    return told, timeline.notes


def _describe(file: MemoryFile) -> str:
    """The first line: where the memory is."""
    if file.kind == "timeline":
        largest = f", most of it {file.categories[0].category}" if file.categories else ""
        return f"memory peaks at {say_bytes(file.peak_bytes or 0)}{largest}"
    if not file.devices:
        return "the snapshot holds no device memory"
    worst = max(file.devices, key=lambda one: one.reserved_bytes)
    failures = len(file.out_of_memory)
    failed = f"; {failures} allocation{'s' * (failures > 1)} failed" if failures else ""
    return (
        f"device {worst.device} has {say_bytes(worst.active_bytes)} in use of {say_bytes(worst.reserved_bytes)}"
        f" reserved{failed}"
    )
