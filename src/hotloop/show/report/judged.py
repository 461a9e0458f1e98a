"""Shared parts of several drawers of a check: a judged value in words, and the meaning of its id."""

from __future__ import annotations

from hotloop.core.check import Judged

from .text import UNKNOWN, clean, format_quantity, format_share


def title_of(one: Judged) -> str:
    """The judged value in words.

    >>> from hotloop.core.check import CheckVerdict
    >>> base = dict(kind="baseline", verdict=CheckVerdict.PASS, value=1, reference=1, change_ratio=0, low_ratio=None,
    ...             high_ratio=None, tolerance_ratio=0, reason="")
    >>> [title_of(Judged(id=i, name=n, **base)) for i, n in (("step_ns", "step_ns"), ("phase/h2d", "h2d_ns"))]
    ['step time', 'phase h2d']
    """
    if one.id.startswith("phase/"):
        return f"phase {one.id.removeprefix('phase/')}"
    if one.id.startswith("budget/"):
        return f"budget {one.name}"
    names = {"step_ns": "step time", "memory_peak_bytes": "peak memory", "samples_per_s": "samples per second"}
    names |= {"tokens_per_s": "tokens per second", "batches_per_s": "batches per second"}
    return names.get(one.name, one.name)


def show_value(name: str, value: float | None) -> str:
    """A value in the unit that its name ends in."""
    if value is None:
        return UNKNOWN
    unit = "per_s" if name.endswith("_per_s") else name.rpartition("_")[2]
    if unit == "ratio" and not name.endswith("_share_ratio"):
        unit = ""
    return format_quantity(float(value), unit, format_share)


def sentence_of(one: Judged) -> str:
    """Title, both values and what decided, on one line."""
    values = f"{show_value(one.name, one.reference)} -> {show_value(one.name, one.value)}"
    if one.kind == "budget":
        values = f"{show_value(one.name, one.value)}, budget {show_value(one.name, one.reference)}"
    return clean(f"{title_of(one)}: {values}; {one.reason}")
