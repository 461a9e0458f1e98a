"""The changes that a what-if knows: how each is written and what it supposes. Help, errors and docs come from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CHANGES: Mapping[str, str] = {
    "no-input-wait": "the next batch is always there",
    "loader-workers": "this many workers make the batches; the training cannot run faster than they do",
    "faster-matmuls": "matrix products and convolutions take 1/FACTOR of their time",
    "faster": "kernels and operators whose name matches the pattern take 1/factor of their time",
    "free-communication": "collectives take no time",
    "fused-launches": "launching calls take 1/factor of their time",
    "free-launches": "launching calls and launch latency take no time",
    "no-host-time": "operators take no time on the host, as in a captured graph",
    "no-host-syncs": "the host never waits for the device",
}
"""What each kind supposes."""

DEFAULT_FACTOR = 2.0
"""Of the kinds whose factor may be left out."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a change is asked for, with an example; ``note`` says what goes without saying in its meaning."""

    text: str
    example: str
    note: str = ""


FORMS: Mapping[str, Form] = {
    "no-input-wait": Form("no-input-wait", "no-input-wait"),
    "loader-workers": Form(
        "loader-workers=COUNT[:CORES]", "loader-workers=4:8", "CORES: number of cores, which is not in the trace"
    ),
    "faster-matmuls": Form("faster-matmuls[=FACTOR]", "faster-matmuls=3", f"FACTOR: {DEFAULT_FACTOR:g} when left out"),
    "faster": Form("faster=FACTOR:REGEX", "faster=3:gemm"),
    "free-communication": Form("free-communication", "free-communication"),
    "fused-launches": Form("fused-launches[=FACTOR]", "fused-launches=4", f"FACTOR: {DEFAULT_FACTOR:g} when left out"),
    "free-launches": Form("free-launches", "free-launches"),
    "no-host-time": Form("no-host-time", "no-host-time"),
    "no-host-syncs": Form("no-host-syncs", "no-host-syncs"),
}
"""How each kind of CHANGES is written."""


def list_forms() -> str:
    """All of them in one line, as CHANGES has them."""
    return ", ".join(FORMS[kind].text for kind in CHANGES)


def explain_forms() -> str:
    """One line for each: how it is written, and what it supposes."""
    width = max(len(form.text) for form in FORMS.values())
    lines = []
    for kind, meaning in CHANGES.items():
        form = FORMS[kind]
        note = f" ({form.note})" if form.note else ""
        lines.append(f"{form.text:<{width}}  {meaning}{note}\n")
    return "".join(lines)
