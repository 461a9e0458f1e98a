"""CheckRenderer: a way to draw a Check, in one file under renderers/; and what several of them say alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hotloop.core.check import Check, Judged
from hotloop.core.phases import PHASES

from .text import clean, format_bytes, format_duration, format_number


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSurface:
    """What the caller knows: the width, whether colours may be used, the folder that paths are told from, and
    whether inconclusive counts as failed (``--strict``)."""

    width: int = 100
    color: bool = False
    unicode: bool = True
    root: str = ""
    is_strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRenderer:
    """``render`` is pure: the same check and surface give the same text."""

    id: str
    summary: str
    render: Callable[[Check, CheckSurface], str]


def check_renderer(renderer_id: str, summary: str) -> Callable[[Callable[[Check, CheckSurface], str]], CheckRenderer]:
    """Make a CheckRenderer of a function."""

    def make(render: Callable[[Check, CheckSurface], str]) -> CheckRenderer:
        return CheckRenderer(id=renderer_id, summary=summary, render=render)

    return make


def title_of(one: Judged) -> str:
    """The judged value in words.

    >>> from hotloop.core.check import Verdict
    >>> base = dict(kind="baseline", verdict=Verdict.PASS, value=1, reference=1, change_ratio=0, low_ratio=None,
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
        return "unknown"
    if name.endswith("_ns"):
        return format_duration(value)
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_share_ratio"):
        return f"{value:.1%}"
    for ending, unit in (("_per_s", "/s"), ("_ms", " ms"), ("_mib", " MiB"), ("_s", " s")):
        if name.endswith(ending):
            return f"{format_number(value)}{unit}"
    return format_number(value)


def sentence_of(one: Judged) -> str:
    """Title, both values and what decided, on one line."""
    values = f"{show_value(one.name, one.reference)} -> {show_value(one.name, one.value)}"
    if one.kind == "budget":
        values = f"{show_value(one.name, one.value)}, budget {show_value(one.name, one.reference)}"
    return clean(f"{title_of(one)}: {values}; {one.reason}")


def relative_path(file: str, root: str) -> str | None:
    """The path below ``root`` with slashes; None for a file elsewhere."""
    prefix = root.rstrip("/") + "/"
    return file[len(prefix) :] if root and file.startswith(prefix) else None


def manual_of(judged_id: str) -> str:
    """What a check of this id judges, for formats that describe their rules."""
    if judged_id.startswith("phase/"):
        phase = judged_id.removeprefix("phase/")
        return f"Mean time per step of the phase {phase}, as a fraction of the baseline's step."
    if judged_id.startswith("budget/"):
        return f"The limit {judged_id.removeprefix('budget/')} of the limits file."
    return {
        "step_ns": "Mean time of a steady step, over ranks.",
        "memory_peak_bytes": "Peak memory of the training.",
    }.get(judged_id, f"Rate of the training: {judged_id}.")


PHASE_IDS = tuple(f"phase/{phase}" for phase in PHASES)
