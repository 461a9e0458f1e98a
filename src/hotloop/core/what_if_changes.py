"""The changes that a what-if knows: the notation and the assumption of each. Help, errors and docs come from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_FACTOR = 2.0
"""For the kinds whose factor may be left out."""


@dataclass(frozen=True, slots=True)
class Form:
    """The notation of a change, and its assumption."""

    text: str
    meaning: str


CHANGES: Mapping[str, Form] = {
    "no-input-wait": Form("no-input-wait", "the next batch is always ready"),
    "faster-matmuls": Form(
        "faster-matmuls[=FACTOR]",
        f"matrix products and convolutions take 1/FACTOR of their time (FACTOR: {DEFAULT_FACTOR:g} when left out)",
    ),
    "faster": Form(
        "faster=FACTOR:REGEX", "kernels and operators whose name matches the pattern take 1/factor of their time"
    ),
    "free-communication": Form("free-communication", "collectives on the device take no time"),
    "fused-launches": Form(
        "fused-launches[=FACTOR]",
        f"launching calls take 1/factor of their time (FACTOR: {DEFAULT_FACTOR:g} when left out)",
    ),
    "free-launches": Form("free-launches", "launching calls and launch latency take no time"),
    "no-host-time": Form("no-host-time", "operators take no time on the host, as in a captured graph"),
    "no-host-syncs": Form("no-host-syncs", "the host never waits for the device"),
}
"""By kind."""


def list_forms() -> str:
    """All of them in one line."""
    return ", ".join(form.text for form in CHANGES.values())


def explain_forms() -> str:
    """One line for each: its notation, and its assumption."""
    width = max(len(form.text) for form in CHANGES.values())
    return "".join(f"{form.text:<{width}}  {form.meaning}\n" for form in CHANGES.values())
