"""StepGraph with a set of changes -> WhatIf: the step time after them, with the next bottleneck taking over.

The graph of some consecutive steps is replayed unchanged first. If that misses the measured step by more than 2 %, the
graph does not know what the steps wait for, and its forecasts are rules of thumb. Then the changes set edges to new
weights, and the graph is replayed again: whatever is slowest then decides. A change sees both clocks: the host may run
ahead of the device, but steps cannot end faster on one of them than on the other for long, so the longer of the two
periods counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hotloop.core.analysis import Forecast
from hotloop.core.errors import UsageError
from hotloop.core.graph import Change
from hotloop.core.trace import Category, Trace, TraceNote
from hotloop.core.trace_analysis import WhatIf
from hotloop.core.what_if_changes import CHANGES, DEFAULT_FACTOR, list_forms

from .classes import Classes
from .critical_path import choose_step, falls_behind
from .dependencies import MAX_GRAPH_ROWS, build_graph, count_rows
from .intervals import Int64s
from .links import NONE, Links, match_names
from .step_graph import KIND, ROLE, StepGraph, StepWindowGraph, replay
from .steps import StepWindows
from .tables import MATRIX_KERNEL, NO_MATRIX_KERNEL

Bools = NDArray[np.bool_]

MAX_REPLAY_MISS_RATIO = 0.02
MATRIX_OP = re.compile(
    r"^(?:aten|mkldnn|onednn)::_?(?:mm|addmm|bmm|baddbmm|addmv|mv|dot|linear|matmul|einsum|convolution|cudnn_convolution"
    r"|mkldnn_convolution|mkldnn_linear|miopen_convolution|conv[123]d|thnn_conv|slow_conv|scaled_mm|scaled_dot_product)"
)
"""Operators that multiply matrices or convolve, with their backward."""
GRAPH_ROWS = 60_000
"""Steps are added to a graph up to this many events; a single step may have more."""
MAX_STEPS = 1000
FEW_STEPS = 3
"""What every report re-times: the median step and its neighbors, of which the first only leads in."""
TYPICAL_RATIO = 0.1
"""Costs are of the mean step. If every fifth step waits for its batch, those around the median do not."""
UNLIKE = "step times vary a lot, and the steps around the median differ from the mean: savings are rules of thumb"
_GONE = -(1 << 61)


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that a change may look at."""

    trace: Trace
    links: Links
    graph: StepGraph


def parse_change(text: str) -> Change:
    """The change that a user wrote as CHANGE[=VALUE]. Raises UsageError, which lists the kinds, for any other text.

    >>> parse_change("faster=3:gemm").factor
    3.0
    """
    kind, _, value = text.partition("=")
    if kind not in CHANGES:
        raise UsageError(f"--what-if {text}: unknown change; choose from {list_forms()}")
    try:
        change = _read_value(kind, value)
        _check((change,))
    except (UsageError, ValueError) as error:
        raise UsageError(f"--what-if {text}: write {CHANGES[kind].text} ({error})") from None
    return change


def _read_value(kind: str, value: str) -> Change:
    if kind == "faster":
        factor, _, pattern = value.partition(":")
        if not pattern:
            raise ValueError("the name pattern is missing")
        return Change(kind=kind, factor=float(factor), pattern=pattern)
    if kind in ("faster-matmuls", "fused-launches"):
        return Change(kind=kind, factor=float(value) if value else DEFAULT_FACTOR)
    if value:
        raise ValueError("it takes no value")
    return Change(kind=kind)


def answer_asked(
    trace: Trace,
    links: Links,
    classes: Classes,
    steps: StepWindows,
    asked: Sequence[str],
) -> tuple[tuple[WhatIf, ...], tuple[TraceNote, ...]]:
    """(every change alone, then all together, on as many steps as fit; why some of them have no result)."""
    sets = [(one,) for one in asked] + ([tuple(asked)] if len(asked) > 1 else [])
    answers: list[WhatIf] = []
    notes: list[TraceNote] = []
    try:
        if steps.source == "whole trace":
            raise UsageError("the trace contains no steps that can be replayed")
        window = open_window(trace, links, classes, steps)
    except UsageError as error:
        return (), (TraceNote(level="warning", code="what-if", message=f"--what-if: {error}"),)
    for texts in sets:
        changes = [parse_change(text) for text in texts]
        try:
            (answer,) = forecast(trace, links, classes, steps, [changes], window)
        except UsageError as error:
            notes.append(TraceNote(level="warning", code=f"what-if {texts}", message=f"--what-if: {error}"))
            continue
        answers.append(replace(answer, changes=texts))
    return tuple(answers), tuple(notes)


def forecast(
    trace: Trace,
    links: Links,
    classes: Classes,
    steps: StepWindows,
    sets: Sequence[Sequence[Change]],
    window: StepWindowGraph | None = None,
) -> tuple[WhatIf, ...]:
    """The step time after each set of changes, all on one graph. Raises UsageError for changes that make no sense."""
    window = window or open_window(trace, links, classes, steps)
    graph = window.graph
    at = Situation(trace, links, graph)
    paced_by = "device" if falls_behind(trace, links, steps) else "host"
    base = replay(graph, graph.weight_ns)
    return tuple(_forecast_one(at, steps, tuple(one), base, paced_by) for one in sets)


ASKED: Mapping[str, Change] = {
    "no-input-wait": Change(kind="no-input-wait"),
    "no-host-syncs": Change(kind="no-host-syncs"),
    "free-launches": Change(kind="free-launches"),
    "no-host-time": Change(kind="no-host-time"),
    "hidden-communication": Change(kind="free-communication"),
}
"""The forecasts that rules ask for, by the name that they use."""


def can_replay(links: Links, steps: StepWindows) -> bool:
    """Whether there are steps to re-time, and device work that something launched."""
    return steps.source != "whole trace" and bool(np.any(links.launch_row >= 0))


def is_typical(steps: StepWindows, first: int, last: int) -> bool:
    """Whether the steps from ``first`` to ``last`` take as long as the complete steps do on average."""
    length = steps.end_ns - steps.start_ns
    mean_ns = float(length[steps.is_complete].mean())
    return abs(float(length[first : last + 1].mean()) - mean_ns) <= TYPICAL_RATIO * mean_ns


def open_typical_window(trace: Trace, links: Links, classes: Classes, steps: StepWindows) -> StepWindowGraph:
    """The graph of FEW_STEPS around the median one, or of all that fit if these are not like the others."""
    first, last = choose_steps(trace, steps, FEW_STEPS)
    return open_window(trace, links, classes, steps, FEW_STEPS if is_typical(steps, first, last) else MAX_STEPS)


def open_window(
    trace: Trace, links: Links, classes: Classes, steps: StepWindows, most: int = MAX_STEPS
) -> StepWindowGraph:
    """The graph of the steps around the median one. Raises UsageError if even that step is too large."""
    first, last = choose_steps(trace, steps, most)
    return StepWindowGraph(first, last, build_graph(trace, links, classes, steps, first, last))


def forecast_for_rules(
    trace: Trace,
    links: Links,
    classes: Classes,
    steps: StepWindows,
    asked: Collection[str] = tuple(ASKED),
    window: StepWindowGraph | None = None,
) -> tuple[Mapping[str, Forecast], tuple[TraceNote, ...]]:
    """(forecasts of what the rules ask for, why there are none). Only simulated ones: a rule has its own rule of
    thumb."""
    wanted = {name: change for name, change in ASKED.items() if name in asked}
    try:
        if not wanted or not can_replay(links, steps):
            return {}, ()
        window = window or open_window(trace, links, classes, steps)
        if not is_typical(steps, window.first, window.last):
            return {}, (TraceNote(level="info", code="not-replayed", message=UNLIKE),)
        found = forecast(trace, links, classes, steps, [(one,) for one in wanted.values()], window)
    except UsageError as error:
        return {}, (TraceNote(level="info", code="not-replayed", message=str(error)),)
    answers = {
        name: Forecast(
            technique=name,
            saving_low_ratio=one.saving_low_ratio,
            saving_mid_ratio=one.saving_mid_ratio,
            saving_high_ratio=one.saving_high_ratio,
            settings={},
            evidence={
                "measured_step_ns": one.measured_step_ns,
                "forecast_step_ns": one.step_ns,
                "replayed_step_ns": one.replayed_step_ns,
                "bound_by": one.bound_by,
                "inferred_edges": one.inferred_edges,
            },
        )
        for name, one in zip(wanted, found, strict=True)
        if one.basis == "simulated"
    }
    if answers:
        return answers, ()
    return {}, (TraceNote(level="info", code="not-replayed", message=found[0].basis_reason),)


def choose_steps(trace: Trace, steps: StepWindows, most: int = MAX_STEPS) -> tuple[int, int]:
    """First and last position of the complete steps to replay: all of them, or as many around the median one as make
    GRAPH_ROWS, at most ``most``. Raises UsageError if even one step is too large."""
    middle = choose_step(steps)
    first = last = middle
    if count_rows(trace, steps, middle, middle) > MAX_GRAPH_ROWS:
        raise UsageError(f"a step has more than {MAX_GRAPH_ROWS} events and cannot be replayed")
    while last - first + 1 < most:
        wider = [(first, last + 1), (first - 1, last)]
        # The shorter side first, so that the median step stays in the middle.
        for low, high in wider if last - middle <= middle - first else wider[::-1]:
            inside = low >= 0 and high < len(steps)
            whole = inside and steps.is_complete[low] and steps.is_complete[high]
            if whole and count_rows(trace, steps, low, high) <= GRAPH_ROWS:
                first, last = low, high
                break
        else:
            break
    return first, last


def _forecast_one(
    at: Situation, steps: StepWindows, changes: tuple[Change, ...], base: Int64s, paced_by: str
) -> WhatIf:
    graph = at.graph
    _check(changes)
    weight_ns = _apply(at, changes)
    retimed = replay(graph, weight_ns)
    stubborn = replay(graph, weight_ns, np.maximum(graph.unexplained, 0))
    measured = _measure(graph, graph.time_ns)
    unchanged, after, worst = (_measure(graph, time) for time in (base, retimed, stubborn))
    period = measured.period(paced_by)
    replayed = unchanged.period(paced_by)
    if not period:
        raise UsageError("the steps have no length, so nothing can be forecast")
    miss = abs(replayed - period) / period
    # If the host sets the pace, the device's longer period in so few steps is only its accumulated lag.
    behind = max(0, unchanged.period("device") - unchanged.period("host")) if paced_by == "host" else 0
    new, bound_by = _slowest(after, behind)
    slow, _ = _slowest(worst, behind)
    # The unchanged replay's own error is in the changed one too: only their ratio counts.
    step = round(new * (period / replayed)) if replayed else new
    spread = _spread(unchanged, after, bound_by) + miss * period / 2
    low = round(min(step, slow, new) - spread)
    high = round(max(step, slow) + spread)
    on_device = ("no-host-time", "free-launches", "no-host-syncs", "free-communication")
    idle = next((change.kind for change in changes if change.kind in on_device and not len(graph.work)), None)
    if idle is not None:
        raise UsageError(f"{idle}: the trace contains no device work, so it has no effect")
    basis = "simulated" if miss <= MAX_REPLAY_MISS_RATIO else "rule-of-thumb"
    reason = f"replayed unchanged, the graph gives {1 + (replayed - period) / period:.4f} of the measured step"
    if basis == "rule-of-thumb":
        reason += ": the steps wait for something that is not in the trace"
    low, high = max(0, min(low, step)), max(high, step)
    return WhatIf(
        rank=at.trace.facts.rank,
        source=at.trace.facts.source,
        changes=tuple(change.kind for change in changes),
        basis=basis,
        basis_reason=reason,
        measured_step_ns=period,
        replayed_step_ns=replayed,
        step_ns=step,
        low_step_ns=low,
        high_step_ns=high,
        saving_low_ratio=1 - high / period,
        saving_mid_ratio=1 - step / period,
        saving_high_ratio=1 - low / period,
        steps_count=len(graph.boundaries),
        paced_by=paced_by,
        bound_by=bound_by,
        inferred_edges=graph.inferred_count,
        edges_count=len(graph.source),
    )


def _check(changes: Sequence[Change]) -> None:
    for change in changes:
        if change.kind not in CHANGES:
            raise UsageError(f"unknown change {change.kind}; choose from {list_forms()}")
        if not (change.factor > 0 and math.isfinite(change.factor)):
            raise UsageError(f"{change.kind}: factor {change.factor} is out of range")
        if change.kind == "faster":
            try:
                re.compile(change.pattern)
            except re.error as error:
                raise UsageError(f"faster: {change.pattern!r} is not a regular expression: {error}") from error


@dataclass(frozen=True, slots=True)
class _Periods:
    """Lengths of the steps on both clocks, without the first step if there are several (its lead belongs to
    another)."""

    host_ns: Int64s
    device_ns: Int64s

    def period(self, clock: str) -> int:
        column = self.host_ns if clock == "host" or len(self.device_ns) == 0 else self.device_ns
        return round(int(column.sum()) / len(column)) if len(column) else 0


def _measure(graph: StepGraph, time: Int64s) -> _Periods:
    ends = time[graph.boundaries]
    count = len(ends)
    done = np.full(count, np.iinfo(np.int64).min, dtype=np.int64)
    mine = np.flatnonzero(graph.work_step >= 0)
    np.maximum.at(done, graph.work_step[mine], time[graph.work_end[mine]])
    done = np.maximum.accumulate(done)
    if count > 1:
        has = bool(done[0] > np.iinfo(np.int64).min)
        return _Periods(np.diff(ends), np.diff(done) if has else np.empty(0, dtype=np.int64))
    device = np.empty(0, dtype=np.int64)
    if len(mine):
        # With a single step, nothing shows how far the device was behind before: its own work counts.
        device = np.array([int(done[0]) - int(time[graph.work_begin[mine]].min())], dtype=np.int64)
    return _Periods(ends - graph.low_ns, device)


def _slowest(after: _Periods, behind: int) -> tuple[int, str]:
    """The longer period, ns, and its name."""
    host = after.period("host")
    device = max(0, after.period("device") - behind) if len(after.device_ns) else 0
    return (device, "device") if device > host else (host, "host")


def _spread(unchanged: _Periods, after: _Periods, bound_by: str) -> float:
    """Two standard errors of the mean changed step, ns, by the steps themselves or by their differences to the
    unchanged ones, whichever vary less; 0 for a single step, about which nothing is known."""
    clock = "device" if bound_by == "device" else "host"
    before, now = (getattr(one, f"{clock}_ns") for one in (unchanged, after))
    if len(now) < 2 or len(now) != len(before):
        return 0.0
    deviation = min(float((before - now).std(ddof=1)), float(now.std(ddof=1)))
    return 2 * deviation / math.sqrt(len(now))


# ---- the changes


def _apply(at: Situation, changes: Sequence[Change]) -> Int64s:
    """The weights of the graph's edges after the changes, ns."""
    weight = at.graph.weight_ns.astype(np.float64)
    for change in changes:
        edges = _find_edges(at, change)
        if change.kind == "no-host-syncs":
            weight[edges] = _GONE
        elif change.kind in ("faster", "faster-matmuls", "fused-launches"):
            weight[edges] /= change.factor
        else:
            weight[edges] = 0
    return np.rint(weight).astype(np.int64)


def _find_edges(at: Situation, change: Change) -> Bools:
    """The edges whose weight a change sets to zero, or divides by its factor."""
    graph, trace = at.graph, at.trace
    edges: Bools
    match change.kind:
        case "no-input-wait":
            edges = graph.role == ROLE["input"]
        case "free-communication":
            edges = (graph.role == ROLE["work"]) & (graph.kind == KIND["comm"])
        case "fused-launches":
            edges = graph.role == ROLE["call"]
        case "free-launches":
            edges = np.isin(graph.role, [ROLE["call"], ROLE["latency"]])
        case "no-host-time":
            # Operators and launching calls; Python, the loader and everything else that the host does stay.
            is_op = np.isin(trace.category[np.maximum(graph.row, 0)], [Category.CPU_OP, Category.RUNTIME])
            is_op &= (graph.row >= 0) & np.isin(graph.role, [ROLE["host"], ROLE["call"]])
            edges = is_op | (graph.role == ROLE["latency"])
        case "no-host-syncs":
            # A full queue, which ends with the start of a piece of work, is not a wait that the program requested.
            edges = (graph.role == ROLE["host_wait"]) & ~np.isin(graph.source, graph.work_begin)
        case "faster-matmuls":
            kernels = _kernels_named(at, MATRIX_KERNEL) & ~_kernels_named(at, NO_MATRIX_KERNEL)
            edges = kernels | _host_ops_without_work(at, MATRIX_OP)
        case _:
            pattern = re.compile(change.pattern)
            edges = _kernels_named(at, pattern) | _work_of_ops(at, pattern) | _host_ops_without_work(at, pattern)
    return edges


def _kernels_named(at: Situation, pattern: re.Pattern[str]) -> Bools:
    graph, trace = at.graph, at.trace
    found: Bools = (graph.role == ROLE["work"]) & (graph.kind != KIND["comm"]) & (graph.row >= 0)
    edges = np.flatnonzero(found)
    found[edges] = match_names(trace, trace.name[graph.row[edges]], pattern)
    return found


def _work_of_ops(at: Situation, pattern: re.Pattern[str]) -> Bools:
    """Device work that was launched inside an operator of that name."""
    graph, links, trace = at.graph, at.links, at.trace
    nearest = links.ranges.find_nearest(match_names(trace, trace.name[links.ranges.rows], pattern))
    inside = np.append(nearest, NONE)[links.op_place[graph.work]] >= 0
    found: Bools = (graph.role == ROLE["work"]) & np.isin(graph.row, links.device_rows[graph.work[inside]])
    return found


def _host_ops_without_work(at: Situation, pattern: re.Pattern[str]) -> Bools:
    """Host time inside operators of that name that launch nothing: those that compute on the CPU."""
    graph, links, trace = at.graph, at.links, at.trace
    ranges = links.ranges
    launches = np.bincount(links.op_place[links.op_place >= 0], minlength=len(ranges))
    matched = match_names(trace, trace.name[ranges.rows], pattern) & (ranges.sum_inside(launches) == 0)
    rows = ranges.rows[ranges.find_nearest(matched) >= 0]
    own: Bools = np.isin(graph.role, [ROLE["host"], ROLE["input"]]) & np.isin(graph.row, rows)
    return own
