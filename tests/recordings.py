"""A recording that a reader sees at once, for tests of readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop.replay.recording_writer import RecordingWriter


class InstantWriter(RecordingWriter):
    def __init__(self, path: Path | str, **limits: int) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        super().__init__(Path(path), **limits)
        self._open(Path(path))

    def write_row(self, row: Sequence[int]) -> None:
        super().write_row(row)
        self.flush()

    def write_fact(self, fact: Mapping[str, Any]) -> None:
        super().write_fact(fact)
        self.flush()
