"""Which settings each method of sending gradients reads."""

from __future__ import annotations

READ_BY = {
    "ratio": ("topk",),
    "momentum": ("topk",),
    "rank": ("powersgd",),
    "warm_up_steps": ("topk", "powersgd"),
    "most_momentum": ("topk",),
}
"""The methods that read a setting; every method reads the others."""


def why_unread(setting: str, method: str) -> str:
    """Why a setting is refused with a method that does not read it."""
    needed = " or ".join(f'"{known}"' for known in READ_BY[setting])
    return f"{setting} needs method = {needed}: {method} does not use it"
