"""A run folder -> rows and facts, with the standard library alone."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.core.frames import KIND_FACT, KIND_ROW, decode_frames, decode_object
from hotloop.core.recording import STEP_FIELDS, TIME_FIELDS

Row = dict[str, int]


@dataclass(frozen=True)
class Recording:
    """One process: rows in order, facts in the order of writing (every version of those that replace each other)."""

    rows: tuple[Row, ...]
    facts: tuple[dict[str, Any], ...]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [fact for fact in self.facts if fact.get("kind") == kind]


def read_recording(path: Path) -> Recording:
    layout = struct.Struct(f"<{len(STEP_FIELDS)}q")
    rows: dict[int, Row] = {}
    facts = []
    for frame in decode_frames(path.read_bytes()):
        if frame.kind == KIND_ROW:
            row = dict(zip(STEP_FIELDS, layout.unpack(frame.payload), strict=True))
            rows[row["index"]] = row
        elif frame.kind == KIND_FACT and (fact := decode_object(frame.payload)) is not None:
            facts.append(fact)
    return Recording(rows=tuple(rows[i] for i in sorted(rows)), facts=tuple(facts))


def read_run(folder: Path) -> Recording:
    """The one training process of a run folder."""
    paths = sorted((folder / "processes").glob("*.hlr"))
    assert len(paths) == 1, f"{len(paths)} recordings in {folder}"
    return read_recording(paths[0])


def check_rows(rows: tuple[Row, ...]) -> None:
    """The laws of a recording: rows follow each other in time, and the phases of each sum to it."""
    assert rows, "no row was recorded"
    for before, after in zip(rows, rows[1:]):  # noqa: B905, RUF007 (Python 3.10)
        assert before["end_ns"] == after["start_ns"]
    for row in rows:
        parts_ns = [row[name] for name in TIME_FIELDS]
        assert all(part >= 0 for part in parts_ns), row
        assert sum(parts_ns) == row["end_ns"] - row["start_ns"], row
