"""Timelines of the ranks of two sides -> TimelineDiff: terms that sum to the change of a step exactly, and what changed
by kernel and operator.

A term is the change of the mean time per step and rank of one phase of the host, or of one part of the device window.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.analyze.changes import RankSteps, SideSteps, join_ranks, sum_terms
from hotloop.core.graph import DiffRow, TimelineDiff
from hotloop.core.phases import PHASES
from hotloop.core.timeline import RankTimeline, StepWindow
from hotloop.core.trace import TraceNote

SAME_RATIO = 0.02
"""Kernels and operators whose time per step changes by less of itself are the same."""
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


def diff_ranks(before: Sequence[RankTimeline], after: Sequence[RankTimeline]) -> TimelineDiff:
    """Why the mean step of the ranks ``after`` takes longer or shorter than that of the ranks ``before``."""
    host, device = (host_steps(before), host_steps(after)), (device_steps(before), device_steps(after))
    return TimelineDiff(
        host=None if host[0] is None or host[1] is None else sum_terms("step", PHASES, host[0], host[1]),
        device=None
        if device[0] is None or device[1] is None
        else sum_terms("device window", DEVICE_PARTS, device[0], device[1]),
        kernels=_diff_kernels(before, after),
        ops=_diff_ops(before, after),
        notes=_write_notes(before, after),
    )


def _write_notes(before: Sequence[RankTimeline], after: Sequence[RankTimeline]) -> tuple[TraceNote, ...]:
    notes: list[TraceNote] = []
    for which, ranks in (("before", before), ("after", after)):
        if any(one.step_source == "whole trace" for one in ranks):
            notes.append(
                TraceNote(
                    level="warning",
                    code="no-steps",
                    message=f"{which}: no steps are marked, so the whole trace counts as one step",
                )
            )
        if any(one.kernels_left_out_count or one.ops_left_out_count for one in ranks):
            notes.append(
                TraceNote(
                    level="info",
                    code="rows-left-out",
                    message=f"{which}: only the largest kernels and operators are compared; others are shown as not "
                    "listed",
                )
            )
    sources = [sorted({one.step_source for one in ranks}) for ranks in (before, after)]
    if sources[0] != sources[1]:
        notes.append(
            TraceNote(
                level="warning",
                code="other-steps",
                message=f"the steps were identified in different ways: {', '.join(sources[0])} and "
                f"{', '.join(sources[1])}",
            )
        )
    return tuple(notes)


def host_steps(ranks: Sequence[RankTimeline]) -> SideSteps | None:
    """The complete steps by phase of the host; None where a rank shows no host activity."""
    found = []
    for one in ranks:
        steps = tuple(s for s in one.steps if s.is_complete) or one.steps
        if not steps or one.anatomy.breakdown is None:
            return None
        found.append(_rank_steps(steps, [s.phases_ns for s in steps]))
    return join_ranks(found)


def device_steps(ranks: Sequence[RankTimeline]) -> SideSteps | None:
    """The device windows by part; None where a rank has none."""
    found = []
    for one in ranks:
        held = [s for s in one.steps if s.partition is not None]
        # The last window ends with the step's own last event, not with the next step: it is shorter than the others.
        held = [s for s in held if not s.is_tail_inclusive] or held
        if not held:
            return None
        found.append(_rank_steps(held, [[getattr(s.partition, f"{part}_ns") for part in DEVICE_PARTS] for s in held]))
    return join_ranks(found)


def _rank_steps(steps: Sequence[StepWindow], parts: Sequence[Sequence[int]]) -> RankSteps:
    return RankSteps(
        index=np.array([s.index for s in steps], dtype=np.int64),
        weight=np.ones(len(steps), dtype=np.int64),
        parts_ns=np.array(parts, dtype=np.int64),
    )


# ---- kernels and operators


@dataclass(slots=True)
class _Sum:
    count: float = 0.0
    total_ns: float = 0.0


def _diff_kernels(before: Sequence[RankTimeline], after: Sequence[RankTimeline]) -> tuple[DiffRow, ...]:
    sides = []
    for ranks in (before, after):
        table: dict[tuple[str, str | None], _Sum] = {}
        for timeline in ranks:
            count = max(1, len(timeline.steps)) * len(ranks)
            for row in timeline.kernels:
                one = table.setdefault((normalize_name(row.name), None), _Sum())
                one.count += row.count / count
                one.total_ns += row.total_ns / count
        sides.append(table)
    return _compare(sides[0], sides[1], *(any(t.kernels_left_out_count for t in side) for side in (before, after)))


def _diff_ops(before: Sequence[RankTimeline], after: Sequence[RankTimeline]) -> tuple[DiffRow, ...]:
    """By self time: of the device where both sides have one, else of the host."""
    on_device = all(t.devices for t in (*before, *after))
    # Without shapes on one side, names must do on both.
    shaped = all(any(row.shapes is not None for row in t.ops) for t in (*before, *after))
    sides = []
    for ranks in (before, after):
        table: dict[tuple[str, str | None], _Sum] = {}
        for timeline in ranks:
            count = max(1, len(timeline.steps)) * len(ranks)
            for row in timeline.ops:
                one = table.setdefault((normalize_name(row.name), row.shapes if shaped else None), _Sum())
                one.count += row.count / count
                one.total_ns += (row.device_self_ns if on_device else row.host_self_ns) / count
        sides.append(table)
    return _compare(sides[0], sides[1], *(any(t.ops_left_out_count for t in side) for side in (before, after)))


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
