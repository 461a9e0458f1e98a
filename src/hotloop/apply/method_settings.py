"""Which setting belongs to which method of compressing gradients. Runs without torch."""

from __future__ import annotations

from collections.abc import Collection

from hotloop.core.findings import Value

METHOD_OF = {"ratio": "topk", "momentum": "topk", "rank": "powersgd"}
"""By setting: the only method that reads it."""


def why_unread(method: Value, given: Collection[str]) -> str | None:
    """Which of the settings that were given this method would ignore, by name; None where it reads them all."""
    for name, needed in METHOD_OF.items():
        if name in given and method != needed:
            return f'{name} needs method = "{needed}": {method} does not use it'
    return None
