"""Two RankTimelines -> TimelineDiff: terms that sum to the change of a step exactly, and what changed by kernel and op.

A term is the change of the mean time per step of one phase of the host, or of one part of the device window. Its
interval is Welch's over the steps: they count as independent of each other, which neighbouring steps are not quite.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hotloop.core.graph import DiffRow, DiffTerm, DiffTerms, TimelineDiff
from hotloop.core.phases import PHASES
from hotloop.core.timeline import RankTimeline, StepWindow, TimelineNote

SAME_RATIO = 0.02
"""Kernels and operators whose time per step changes by less of itself are the same."""
T_95 = (
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09,
    2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04,
)  # fmt: skip
"""Two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom, rounded; 2.04 at 30, 1.96 at infinity."""
DEVICE_PARTS = ("compute", "exposed_comm", "exposed_mem", "idle")

_HASH = re.compile(r"(?:_[0-9a-f]{8,})+(?=_|$)|0x[0-9a-f]+", re.IGNORECASE)
_TRITON_NUMBER = re.compile(r"^(triton_\w+?)(?:_\d+)+(?:_?\d+[dc][0-9dce]*)?$|^(triton_\w+?)_(?:\d+[dc])[0-9dce]*$")
_NUMBERED_RANGE = re.compile(r"#\d+\b")


def normalize_name(name: str) -> str:
    """The name without what differs between two builds of the same thing: hashes, addresses, numbers of Triton kernels
    and of ranges.

    >>> normalize_name("triton_poi_fused_add_relu_12"), normalize_name("ProfilerStep#4")
    ('triton_poi_fused_add_relu', 'ProfilerStep')
    """
    short = _HASH.sub("", _NUMBERED_RANGE.sub("", name))
    triton = _TRITON_NUMBER.match(short)
    return (triton.group(1) or triton.group(2)) if triton else short


def diff_timelines(before: RankTimeline, after: RankTimeline) -> TimelineDiff:
    """Why the step of ``after`` takes longer or shorter than that of ``before``."""
    notes: list[TimelineNote] = []
    counts = (max(1, len(before.steps)), max(1, len(after.steps)))
    for which, timeline in (("before", before), ("after", after)):
        if timeline.step_source == "whole trace":
            notes.append(
                TimelineNote(
                    level="warning",
                    code="no-steps",
                    message=f"{which}: no steps are marked; the whole trace counts as one",
                )
            )
        if timeline.kernels_left_out_count or timeline.ops_left_out_count:
            notes.append(
                TimelineNote(
                    level="info",
                    code="rows-left-out",
                    message=f"{which}: only the largest kernels and operators are compared; what is not among them"
                    " shows as not listed",
                )
            )
    if before.step_source != after.step_source:
        notes.append(
            TimelineNote(
                level="warning",
                code="other-steps",
                message=f"steps were found in different ways: {before.step_source} and {after.step_source}",
            )
        )
    return TimelineDiff(
        host=_diff_host(_complete(before), _complete(after), before, after),
        device=_diff_device(before, after),
        kernels=_diff_kernels(before, after, counts),
        ops=_diff_ops(before, after, counts),
        notes=tuple(notes),
    )


def _complete(timeline: RankTimeline) -> tuple[StepWindow, ...]:
    return tuple(s for s in timeline.steps if s.is_complete) or timeline.steps


def _diff_host(
    before: Sequence[StepWindow], after: Sequence[StepWindow], first: RankTimeline, second: RankTimeline
) -> DiffTerms | None:
    if not before or not after or first.anatomy.breakdown is None or second.anatomy.breakdown is None:
        return None
    columns = [
        (name, [s.phases_ns[i] for s in before], [s.phases_ns[i] for s in after]) for i, name in enumerate(PHASES)
    ]
    return sum_terms("step", [s.host_ns for s in before], [s.host_ns for s in after], columns)


def _diff_device(before: RankTimeline, after: RankTimeline) -> DiffTerms | None:
    sides = []
    for timeline in (before, after):
        # The last window ends with the step's own last event, not with the next step: it is shorter than the others.
        windows = [s.partition for s in timeline.steps if s.partition is not None and not s.is_tail_inclusive]
        windows = windows or [s.partition for s in timeline.steps if s.partition is not None]
        if not windows:
            return None
        sides.append([w for w in windows if w is not None])
    one, two = sides
    columns = [
        (part, [getattr(w, f"{part}_ns") for w in one], [getattr(w, f"{part}_ns") for w in two])
        for part in DEVICE_PARTS
    ]
    return sum_terms("device window", [w.window_ns for w in one], [w.window_ns for w in two], columns)


def sum_terms(
    name: str, before: Sequence[int], after: Sequence[int], columns: Iterable[tuple[str, Sequence[int], Sequence[int]]]
) -> DiffTerms:
    """The change of the mean of a whole, and of its parts, per step; the parts' means are rounded so that they sum to
    the whole's on both sides."""
    listed = list(columns)
    first = apportion([sum(values) for _, values, _ in listed], len(before))
    second = apportion([sum(values) for _, _, values in listed], len(after))
    whole_before, whole_after = sum(first), sum(second)

    def term(label: str, a: int, b: int, one: Sequence[int], two: Sequence[int]) -> DiffTerm:
        return DiffTerm(name=label, before_ns=a, after_ns=b, delta_ns=b - a, half_width_ns=half_width(one, two))

    return DiffTerms(
        before_ns=whole_before,
        after_ns=whole_after,
        whole=term(name, whole_before, whole_after, before, after),
        terms=tuple(term(label, a, b, one, two) for (label, one, two), a, b in zip(listed, first, second, strict=True)),
    )


def apportion(totals: Sequence[int], parts: int) -> list[int]:
    """Each total over ``parts``, rounded to whole ns so that the results sum to the sum of the totals over ``parts``,
    rounded down: the largest remainders are rounded up."""
    whole = sum(totals) // parts
    shares = [total // parts for total in totals]
    missing = whole - sum(shares)
    by_remainder = sorted(range(len(totals)), key=lambda i: (-(totals[i] % parts), i))
    for i in by_remainder[:missing]:
        shares[i] += 1
    return shares


def half_width(before: Sequence[int], after: Sequence[int]) -> int | None:
    """Half of Welch's 95 % interval of the difference of the means, ns; None with fewer than two steps on a side."""
    if len(before) < 2 or len(after) < 2:
        return None
    parts = []
    for values in (before, after):
        mean = sum(values) / len(values)
        parts.append(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    variance = sum(parts)
    if variance == 0:
        return 0
    freedom = variance**2 / sum(p**2 / (len(v) - 1) for p, v in zip(parts, (before, after), strict=True))
    return math.ceil(student_95(freedom) * math.sqrt(variance))


def student_95(freedom: float) -> float:
    """Two-sided 95 % point of Student's t; rounded towards wide between the tabled degrees of freedom."""
    if freedom < len(T_95) + 1:
        return T_95[max(0, int(freedom) - 1)]
    return 1.96 + (T_95[-1] - 1.96) * len(T_95) / freedom


# ---- kernels and operators


@dataclass(slots=True)
class _Sum:
    count: float = 0.0
    total_ns: float = 0.0


def _diff_kernels(before: RankTimeline, after: RankTimeline, steps: tuple[int, int]) -> tuple[DiffRow, ...]:
    sides = []
    for timeline, count in zip((before, after), steps, strict=True):
        table: dict[tuple[str, str | None], _Sum] = {}
        for row in timeline.kernels:
            one = table.setdefault((normalize_name(row.name), None), _Sum())
            one.count += row.count / count
            one.total_ns += row.total_ns / count
        sides.append(table)
    return _compare(sides[0], sides[1], before.kernels_left_out_count > 0, after.kernels_left_out_count > 0)


def _diff_ops(before: RankTimeline, after: RankTimeline, steps: tuple[int, int]) -> tuple[DiffRow, ...]:
    """By self time: of the device where both sides have one, else of the host."""
    on_device = bool(before.devices) and bool(after.devices)
    # Without shapes on one side, names must do on both.
    shaped = all(any(row.shapes is not None for row in t.ops) for t in (before, after))
    sides = []
    for timeline, count in zip((before, after), steps, strict=True):
        table: dict[tuple[str, str | None], _Sum] = {}
        for row in timeline.ops:
            one = table.setdefault((normalize_name(row.name), row.shapes if shaped else None), _Sum())
            one.count += row.count / count
            one.total_ns += (row.device_self_ns if on_device else row.host_self_ns) / count
        sides.append(table)
    return _compare(sides[0], sides[1], before.ops_left_out_count > 0, after.ops_left_out_count > 0)


def _compare(
    before: dict[tuple[str, str | None], _Sum],
    after: dict[tuple[str, str | None], _Sum],
    is_before_cut: bool,
    is_after_cut: bool,
) -> tuple[DiffRow, ...]:
    absent = ("not listed before" if is_before_cut else "new", "not listed after" if is_after_cut else "gone")
    rows = []
    for key in before.keys() | after.keys():
        one, two = before.get(key), after.get(key)
        delta = (two.total_ns if two else 0.0) - (one.total_ns if one else 0.0)
        effect = None
        if one is not None and two is not None and one.count:
            effect = (two.count - one.count) * one.total_ns / one.count
        rows.append(
            DiffRow(
                name=key[0],
                shapes=key[1],
                status=_status(one, two, delta, effect, absent),
                before_count=None if one is None else one.count,
                after_count=None if two is None else two.count,
                before_ns=None if one is None else one.total_ns,
                after_ns=None if two is None else two.total_ns,
                delta_ns=delta,
                count_effect_ns=effect,
            )
        )
    return tuple(sorted(rows, key=lambda r: (-abs(r.delta_ns), r.name, r.shapes or "")))


def _status(one: _Sum | None, two: _Sum | None, delta: float, effect: float | None, absent: tuple[str, str]) -> str:
    if one is None:
        return absent[0]
    if two is None:
        return absent[1]
    if abs(delta) <= SAME_RATIO * max(one.total_ns, two.total_ns):
        return "same"
    if effect is not None and abs(effect) > abs(delta - effect):
        return "more calls" if effect > 0 else "fewer calls"
    return "slower" if delta > 0 else "faster"
