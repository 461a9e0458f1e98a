"""Two sets of traces, reduced file by file -> their Comparison.

A term is the change of the mean time per step and rank of one phase of the host, or of one part of the device window;
terms sum to the change of the step exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hotloop import __version__
from hotloop.core.comparison import Comparison, DiffSide
from hotloop.core.errors import RecordingError
from hotloop.core.graph import DiffRow, DiffTerms
from hotloop.core.phases import PHASES
from hotloop.core.redact import redact_text
from hotloop.core.timeline import RankTimeline, StepWindow
from hotloop.core.trace import Trace, TraceNote
from hotloop.core.trace_results import ReducedTraces
from hotloop.core.utilization import mean_utilization
from hotloop.evidence.analyze.changes import RankSteps, SideSteps, join_ranks, sum_terms
from hotloop.evidence.analyze.compare_runs import INTERVAL_NOTE, compare_devices, redact_once

from .reduce import ReduceOptions, lay_groundwork, merge_notes, reduce_trace

TABLE_ROWS = 2_000
"""Kernels and operators of each rank that are compared."""
SAME_RATIO = 0.02
"""Kernels and operators whose time per step changes by less than this share count as the same."""
DEVICE_PARTS = ("compute", "exposed_comm", "exposed_mem", "idle")
_HASH = re.compile(r"(?:_[0-9a-f]{8,})+(?=_|$)|0x[0-9a-f]+", re.IGNORECASE)
_TRITON_NUMBER = re.compile(r"^(triton_\w+?)(?:_\d+)+(?:_?\d+[dc][0-9dce]*)?$|^(triton_\w+?)_(?:\d+[dc])[0-9dce]*$")
_NUMBERED_RANGE = re.compile(r"#\d+\b")


def reduce_for_diff(trace: Trace) -> RankTimeline:
    """One file alone."""
    return reduce_trace(trace, ReduceOptions(top=TABLE_ROWS), lay_groundwork(trace))


Side = ReducedTraces[RankTimeline]


def compare_traces(names: tuple[str, str], reduced: tuple[Side, Side]) -> Comparison:
    """Traces as the user names them; a side that is given twice is compared with itself. Raises RecordingError if
    the sides show nothing in common."""
    same = reduced[0] is reduced[1]
    timelines = [[one.result for one in side.traces] for side in reduced]
    host = _sum_changes("step", PHASES, [host_steps(side) for side in timelines])
    device = _sum_changes("device window", DEVICE_PARTS, [device_steps(side) for side in timelines])
    if host is None and device is None:
        raise RecordingError(
            f"{names[0]} and {names[1]} cannot be compared: they have neither host steps nor device work in "
            "common; see `hotloop trace` for what each contains"
        )
    sides = [_describe_traces(name, side) for name, side in zip(names, reduced, strict=True)]
    warnings, notes = _compare_tables(timelines)
    for which, side in zip(("before", "after"), reduced, strict=True):
        for note in _collect_notes(side):
            (notes if note.level == "info" else warnings).append(f"{which}: {note.message}")
    if same:
        warnings.insert(0, "both sides are the same file or folder")
    warnings += compare_devices(*sides)
    notes.append("traces do not contain the number of samples per step; make sure that it is the same on both sides")
    if host is not None and min(s.steps_count for s in sides) > 1:
        notes.append(INTERVAL_NOTE)
    return Comparison(
        tool_version=__version__,
        before=sides[0],
        after=sides[1],
        warnings=redact_once(warnings),
        step=host,
        per_unit=None,
        device=device,
        kernels=_diff_kernels(timelines),
        ops=_diff_ops(timelines),
        notes=redact_once(notes),
    )


def _sum_changes(name: str, labels: Sequence[str], sides: Sequence[SideSteps | None]) -> DiffTerms | None:
    """None if a side does not show them."""
    before, after = sides
    return None if before is None or after is None else sum_terms(name, labels, before, after)


def _compare_tables(sides: Sequence[Sequence[RankTimeline]]) -> tuple[list[str], list[str]]:
    """Warnings and notes about the timelines of the sides."""
    warnings, notes = [], []
    for which, ranks in zip(("before", "after"), sides, strict=True):
        if any(one.step_source == "whole trace" for one in ranks):
            warnings.append(f"{which}: no steps are marked, so the entire trace counts as one step")
        if any(one.kernels_left_out_count or one.ops_left_out_count for one in ranks):
            notes.append(
                f"{which}: only the largest kernels and operators are compared; others are shown as not listed"
            )
    before, after = (", ".join(sorted({one.step_source for one in ranks})) for ranks in sides)
    if before != after:
        warnings.append(f"the steps were identified in different ways: {before} and {after}")
    return warnings, notes


def _describe_traces(name: str, side: Side) -> DiffSide:
    timelines = [one.result for one in side.traces]
    joined = host_steps(timelines) or device_steps(timelines)
    has_device = all(t.devices for t in timelines)
    return DiffSide(
        name=redact_text(name),
        kind="traces",
        ranks_count=len(timelines),
        world_size=max((one.facts.world_size or 0 for one in side.traces), default=0) or None,
        steps_count=0 if joined is None else joined.steps_count,
        step_source=", ".join(sorted({t.step_source for t in timelines})),
        device="device" if has_device else "cpu",
        samples_per_step=None,
        tokens_per_step=None,
        utilization=mean_utilization([t.utilization for t in timelines]),
    )


def _collect_notes(side: Side) -> list[TraceNote]:
    """Problems with the files themselves."""
    several = [[n for n in (*one.notes, *one.result.notes) if n.level != "info"] for one in side.traces]
    guessed = [note for note in side.notes if note.code != "guessed-ranks" or len(side.traces) > 1]
    return [*guessed, *merge_notes(several)]


def host_steps(ranks: Sequence[RankTimeline]) -> SideSteps | None:
    """The complete steps by phase of the host; None if a rank shows no host activity."""
    found = []
    for one in ranks:
        steps = tuple(s for s in one.steps if s.is_complete) or one.steps
        if not steps or one.anatomy.breakdown is None:
            return None
        found.append(_rank_steps(steps, [s.phases_ns for s in steps]))
    return join_ranks(found)


def device_steps(ranks: Sequence[RankTimeline]) -> SideSteps | None:
    """The device windows by part; None if a rank has none."""
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

Key = tuple[str, str | None]
"""Name and, if both sides have them, shapes."""


@dataclass(slots=True)
class _Sum:
    count: float = 0.0
    total_ns: float = 0.0


def _diff_kernels(sides: Sequence[Sequence[RankTimeline]]) -> tuple[DiffRow, ...]:
    tables = [
        _sum_rows(side, lambda one: [((r.name, None), r.count, r.total_ns) for r in one.kernels]) for side in sides
    ]
    return _compare(tables, [any(one.kernels_left_out_count for one in side) for side in sides])


def _diff_ops(sides: Sequence[Sequence[RankTimeline]]) -> tuple[DiffRow, ...]:
    """By self time: of the device if both sides have one, else of the host."""
    every = [one for side in sides for one in side]
    self_time = "device_self_ns" if all(one.devices for one in every) else "host_self_ns"
    # Without shapes on one side, both sides are compared by names only.
    shaped = all(any(row.shapes is not None for row in one.ops) for one in every)

    def list_rows(one: RankTimeline) -> list[tuple[Key, int, int]]:
        return [((r.name, r.shapes if shaped else None), r.count, getattr(r, self_time)) for r in one.ops]

    tables = [_sum_rows(side, list_rows) for side in sides]
    return _compare(tables, [any(one.ops_left_out_count for one in side) for side in sides])


def _sum_rows(
    ranks: Sequence[RankTimeline], list_rows: Callable[[RankTimeline], Sequence[tuple[Key, int, int]]]
) -> dict[Key, _Sum]:
    """Calls and ns per step and rank, by what stays the same in two builds."""
    table: dict[Key, _Sum] = {}
    for timeline in ranks:
        share = max(1, len(timeline.steps)) * len(ranks)
        for (name, shapes), count, total_ns in list_rows(timeline):
            one = table.setdefault((normalize_name(name), shapes), _Sum())
            one.count += count / share
            one.total_ns += total_ns / share
    return table


def normalize_name(name: str) -> str:
    """The name without the parts that differ between two builds of the same thing: hashes, addresses, numbers of Triton
    kernels and of ranges.

    >>> normalize_name("triton_poi_fused_add_relu_12"), normalize_name("ProfilerStep#4")
    ('triton_poi_fused_add_relu', 'ProfilerStep')
    """
    short = _HASH.sub("", _NUMBERED_RANGE.sub("", name))
    triton = _TRITON_NUMBER.match(short)
    return (triton.group(1) or triton.group(2)) if triton else short


def _compare(tables: Sequence[dict[Key, _Sum]], is_cut: Sequence[bool]) -> tuple[DiffRow, ...]:
    before, after = tables
    absent = ("not listed before" if is_cut[0] else "new", "not listed after" if is_cut[1] else "gone")
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
