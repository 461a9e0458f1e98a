"""exports.json: what became of the exported points, from the end of a run to its report (docs/formats.md)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from hotloop.core.frames import decode_object
from hotloop.core.report import Health

from .exporter import Exported

NAME = "exports.json"
SCHEMA = "hotloop.exports/1"
_MOST_BYTES = 1 << 20
_MOST_TARGETS = 64


def exports_to_json(exported: Iterable[Exported]) -> str:
    return json.dumps({"schema": SCHEMA, "targets": [asdict(one) for one in exported]})


def describe_exports(folder: Path) -> tuple[Health, ...]:
    """One warning for each target that did not get every point; nothing where all went well or the file is no such."""
    try:
        with (folder / NAME).open("rb") as file:
            content = decode_object(file.read(_MOST_BYTES)) or {}
    except OSError:
        return ()
    targets = content.get("targets")
    lines = []
    for one in targets[:_MOST_TARGETS] if isinstance(targets, list) else ():
        if not isinstance(one, dict):
            continue
        sent, lost = one.get("sent_count"), one.get("lost_count")
        if type(sent) is not int or type(lost) is not int or sent < 0 or lost <= 0:
            continue
        name, reason = str(one.get("target"))[:40], str(one.get("reason") or "reason not known")[:200]
        lines.append(f"export to {name}: {lost:,} of {sent + lost:,} points were lost ({reason})")
    return tuple(Health(level="warning", message=line) for line in lines)
