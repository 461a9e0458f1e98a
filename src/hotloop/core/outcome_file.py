"""outcome.json: what a launcher writes of the end of the command that it recorded (docs/formats.md)."""

from __future__ import annotations

import json

OUTCOME_FILE = "outcome.json"


def outcome_to_json(
    *,
    exit_code: int | None,
    signal: int | None,
    duration_s: float,
    oom_kills: int | None = None,
    unattached: str | None = None,
) -> str:
    """The text of the file. ``signal`` is the number of the one that ended the command, ``oom_kills`` how many
    processes the kernel killed for memory meanwhile, ``unattached`` why no process recorded anything."""
    content = {
        "schema": "hotloop.outcome/1",
        "exit_code": exit_code,
        "signal": signal,
        "duration_s": duration_s,
        "oom_kills": oom_kills,
        "unattached": unattached,
    }
    return json.dumps(content)
