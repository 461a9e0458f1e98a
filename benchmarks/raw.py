"""The raw data of one pass -> its file: commit, machine and date first, then one row a line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LONG_COUNT = 2000
"""Characters from which a mapping is written one key a line."""


def describe_commit() -> str:
    """Short hash of the checkout, with ``-dirty`` where its sources differ from it."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    words = ("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results")
    changed = subprocess.run([*git, *words], capture_output=True, text=True, check=False)
    return (head.stdout.strip() or "no-commit") + ("-dirty" if changed.stdout.strip() else "")


def draw_raw(content: Mapping[str, Any]) -> str:
    """The text of a file of benchmarks/results.

    >>> print(draw_raw({"date": "2026-01-01", "rows": [{"a": 1}, {"a": 2}]}), end="")
    {
    "date": "2026-01-01",
    "rows": [
    {"a": 1},
    {"a": 2}
    ]
    }
    """
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_draw(value)}" for key, value in content.items()) + "\n}\n"


def _draw(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        return "[\n" + ",\n".join(json.dumps(row) for row in value) + "\n]"
    if isinstance(value, dict) and len(json.dumps(value)) > LONG_COUNT:
        return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in value.items()) + "\n}"
    return json.dumps(value)
