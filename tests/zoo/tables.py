"""One pass of measurements <-> one compact table: JSON lines, first what holds for all of it, then one row a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = "hotloop.table/1"
HEADER_KEYS = ("schema", "pass", "commit", "machine", "date")
"""What every first line has. ``commit`` is None, and ``commit_unknown`` says why, where it was not kept."""


@dataclass(frozen=True)
class Table:
    header: Mapping[str, Any]
    rows: tuple[dict[str, Any], ...]


def write_table(path: Path, header: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
    """Replaces the file in one move, so that an interruption leaves the old one or the new one."""
    head = {"schema": SCHEMA, **header}
    missing = [key for key in HEADER_KEYS if key not in head]
    if missing:
        raise ValueError(f"{path.name}: a table states {', '.join(missing)} in its first line")
    rows = tuple(rows)
    head["row_count"] = len(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".tmp")
    half.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in (head, *rows)))
    half.replace(path)


def read_table(path: Path) -> Table:
    first, *rest = path.read_text().splitlines()
    header = json.loads(first)
    if header.get("schema") != SCHEMA:
        raise ValueError(f"{path} is not a table of schema {SCHEMA}")
    if header["row_count"] != len(rest):
        raise ValueError(f"{path.name} counts {header['row_count']} rows and holds {len(rest)}")
    return Table(header, tuple(json.loads(line) for line in rest))
