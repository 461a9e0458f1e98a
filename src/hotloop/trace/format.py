"""A kind of trace file, in one file of trace/formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .byte_source import Progress
from .columns import TraceColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """``read`` gives one trace per process in the file, and raises TraceError or RecordingError in one line."""

    id: str
    suffixes: Sequence[str]
    """File name endings in lower case by which a folder is searched, '.json' and the like."""
    sniff: Callable[[bytes], bool]
    """True when the first kilobytes of a file, unpacked where it is gzip, look like this format."""
    read: Callable[[Path, Progress | None], Sequence[TraceColumns]]
    version: int
    """Raised whenever ``read`` gives other columns for the same file, so that cached columns are made anew."""
