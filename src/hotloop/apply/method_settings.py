"""Which setting of a technique is read only beside some value of another one. Runs without torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hotloop.core.findings import Value

Needs = Mapping[str, tuple[str, tuple[str, ...]]]
"""By setting: the other setting, and its values with which this one is used."""

COMPRESSION_NEEDS: Needs = {
    "ratio": ("method", ("topk",)),
    "momentum": ("method", ("topk",)),
    "warm_up_steps": ("method", ("topk",)),
    "most_momentum": ("method", ("topk",)),
}
"""Of compressing gradients."""


def why_unread(needs: Needs, settings: Mapping[str, Value], given: Collection[str]) -> str | None:
    """Which of the settings that were given would be ignored, by name; None where all are read."""
    for name, (other, values) in needs.items():
        if name in given and settings[other] not in values:
            wanted = " or ".join(f'"{one}"' for one in values)
            return f"{name} needs {other} = {wanted}: {settings[other]} does not use it"
    return None
