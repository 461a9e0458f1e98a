"""StepGraph with a set of changes -> WhatIf: the step time after them, with the next bottleneck taking over.

The graph of some consecutive steps is replayed unchanged first. When that misses the measured step by more than 2 %,
the graph does not know what the steps wait for, and its forecasts are rules of thumb. Then the changes set edges to
new weights, and the graph is replayed again: whatever is slowest then decides. A change sees both clocks: the host may
run ahead of the device, but steps cannot end faster on one of them than on the other for long, so the longer period of
the two counts.
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
from hotloop.core.graph import BOUND_KINDS, Change, WhatIf
from hotloop.core.trace import Category, Trace, TraceNote
from hotloop.core.trace_analysis import AskedChange
from hotloop.core.what_if_changes import CHANGES, DEFAULT_FACTOR, list_forms

from .classes import Classes
from .critical_path import choose_step, falls_behind, split_retimed
from .dependencies import MAX_GRAPH_ROWS, build_graph, count_rows
from .intervals import Int64s
from .links import NONE, Links, match_names
from .loading import Loading, measure_loading
from .step_graph import KIND, ROLE, StepGraph, StepWindowGraph, replay
from .steps import LOADER_NEXT, StepWindows
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
"""What every report re-times: the median step and its neighbours, of which the first one only leads in."""
TYPICAL_RATIO = 0.1
"""Costs are of the mean step. Where every fifth step waits for its batch, those around the median do not."""
UNLIKE = "the steps vary a lot in length, and those around the median differ from the mean: savings are rules of thumb"
_SINGLE_PROCESS = re.compile(r"SingleProcess")
_GONE = -(1 << 61)


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that a change may look at."""

    trace: Trace
    links: Links
    graph: StepGraph


def parse_change(text: str) -> Change:
    """The change that a user wrote as CHANGE[=VALUE]. Raises UsageError, which lists the kinds, for any other text.

    >>> parse_change("faster=3:gemm").factor, parse_change("loader-workers=4").workers_count
    (3.0, 4)
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
    if kind == "loader-workers":
        workers, _, cores = value.partition(":")
        return Change(kind=kind, workers_count=int(workers), cores_count=int(cores) if cores else 0)
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
) -> tuple[tuple[AskedChange, ...], tuple[TraceNote, ...]]:
    """(every change alone, then all together, on as many steps as fit; why some of them have no answer)."""
    sets = [(one,) for one in asked] + ([tuple(asked)] if len(asked) > 1 else [])
    answers: list[AskedChange] = []
    notes: list[TraceNote] = []
    try:
        if steps.source == "whole trace":
            raise UsageError("the trace contains no steps that can be replayed")
        window = open_window(trace, links, classes, steps)
    except UsageError as error:
        return (), (TraceNote(level="warning", code="what-if", message=f"--what-if: {error}"),)
    for one in sets:
        changes = [parse_change(text) for text in one]
        try:
            (found,) = forecast(trace, links, classes, steps, [changes], window)
        except UsageError as error:
            notes.append(TraceNote(level="warning", code=f"what-if {one}", message=f"--what-if: {error}"))
            continue
        answers.append(_forecast_asked(trace, one, found))
    return tuple(answers), tuple(notes)


_RESTATED = (
    *("basis", "basis_reason", "steps_count", "paced_by", "measured_step_ns", "replayed_step_ns", "step_ns"),
    *("low_step_ns", "high_step_ns", "saving_low_ratio", "saving_mid_ratio", "saving_high_ratio"),
    *("bound_by", "limits_ns"),
)


def _forecast_asked(trace: Trace, asked: tuple[str, ...], found: WhatIf) -> AskedChange:
    edges = found.edges
    recorded = edges.program + edges.launch + edges.sync
    return AskedChange(
        rank=trace.facts.rank,
        source=trace.facts.source,
        changes=asked,
        **{name: getattr(found, name) for name in _RESTATED},
        bound_ns=dict(zip(BOUND_KINDS, found.bound_ns, strict=True)),
        inferred_edges=edges.inferred,
        edges_count=recorded + edges.inferred,
    )


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
"""What rules ask for, by the name under which they do."""


def can_replay(links: Links, steps: StepWindows) -> bool:
    """Whether there are steps to re-time, and work of a device that something launched."""
    return steps.source != "whole trace" and bool(np.any(links.launch_row >= 0))


def is_typical(steps: StepWindows, first: int, last: int) -> bool:
    """Whether the steps from ``first`` to ``last`` take as long as the complete steps do on average."""
    length = steps.end_ns - steps.start_ns
    mean_ns = float(length[steps.is_complete].mean())
    return abs(float(length[first : last + 1].mean()) - mean_ns) <= TYPICAL_RATIO * mean_ns


def open_typical_window(trace: Trace, links: Links, classes: Classes, steps: StepWindows) -> StepWindowGraph:
    """The graph of FEW_STEPS around the median one, or of all that fit where these are not like the others."""
    first, last = choose_steps(trace, steps, FEW_STEPS)
    return open_window(trace, links, classes, steps, FEW_STEPS if is_typical(steps, first, last) else MAX_STEPS)


def open_window(
    trace: Trace, links: Links, classes: Classes, steps: StepWindows, most: int = MAX_STEPS
) -> StepWindowGraph:
    """The graph of the steps around the median one. Raises UsageError when even that one is too large."""
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
                "inferred_edges": one.edges.inferred,
            },
        )
        for name, one in zip(wanted, found, strict=True)
        if one.basis == "simulated"
    }
    if answers:
        return answers, ()
    return {}, (TraceNote(level="info", code="not-replayed", message=found[0].basis_reason),)


def choose_steps(trace: Trace, steps: StepWindows, most: int = MAX_STEPS) -> tuple[int, int]:
    """First and last place of the complete steps to replay: all of them, or as many around the median one as make
    GRAPH_ROWS, at most ``most``. Raises UsageError when even one is too large."""
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
    weight, loader, doubt = _apply(at, changes)
    changed = replay(graph, weight)
    stubborn = replay(graph, weight, np.maximum(graph.unexplained, 0))
    measured = _measure(graph, graph.time_ns)
    unchanged, after, worst = (_measure(graph, time) for time in (base, changed, stubborn))
    period = measured.period(paced_by)
    replayed = unchanged.period(paced_by)
    miss = abs(replayed - period) / period if period else 1.0
    # Where the host sets the pace, the device's longer period in so few steps is only what it has fallen behind.
    behind = max(0, unchanged.period("device") - unchanged.period("host")) if paced_by == "host" else 0
    new, limits, bound_by = _slowest(after, loader, "middle", behind)
    slow, _, _ = _slowest(worst, loader, "worst", behind)
    best, _, _ = _slowest(after, loader, "best", behind)
    # The unchanged replay's own error is in the changed one too: only their ratio counts.
    step = round(new * (period / replayed)) if replayed else new
    spread = _spread(unchanged, after, bound_by) + miss * period / 2
    low = round(min(step, slow, best) - spread)
    high = round(max(step, slow) + spread)
    host_only = [c.kind for c in changes if c.kind in ("no-host-time", "free-launches", "no-host-syncs")]
    if host_only and len(graph.work) == 0:
        raise UsageError(f"{host_only[0]}: the trace contains no device work, so freeing the host has no effect")
    basis = "simulated" if miss <= MAX_REPLAY_MISS_RATIO else "rule-of-thumb"
    reason = f"replayed unchanged, the graph gives {1 + (replayed - period) / period:.4f} of the measured step"
    if basis == "rule-of-thumb":
        reason += ": the steps wait for something that is not in the trace"
    loader_doubt = loader.doubts(after.period("host"), period) if loader is not None else ""
    if doubt or (loader_doubt and basis == "simulated"):
        basis, reason = "rule-of-thumb", doubt or loader_doubt
    return WhatIf(
        changes=changes,
        basis=basis,
        basis_reason=reason,
        measured_step_ns=period,
        replayed_step_ns=replayed,
        step_ns=step,
        low_step_ns=max(0, min(low, step)),
        high_step_ns=max(high, step),
        steps_count=len(graph.boundaries),
        paced_by=paced_by,
        bound_by=bound_by,
        limits_ns=limits,
        bound_ns=_split_step(graph, weight, changed, bound_by, step),
        edges=graph.edges,
    )


def _check(changes: Sequence[Change]) -> None:
    for change in changes:
        if change.kind not in CHANGES:
            raise UsageError(f"unknown change {change.kind}; choose from {list_forms()}")
        if not (change.factor > 0 and math.isfinite(change.factor)):
            raise UsageError(f"{change.kind}: factor {change.factor} is out of range")
        if change.kind == "loader-workers" and change.workers_count < 1:
            raise UsageError("loader-workers: give at least one worker")
        if change.cores_count < 0:
            raise UsageError(f"loader-workers: {change.cores_count} cores is out of range")
        if change.kind == "faster":
            try:
                re.compile(change.pattern)
            except re.error as error:
                raise UsageError(f"faster: {change.pattern!r} is not a regular expression: {error}") from error


@dataclass(frozen=True, slots=True)
class _Periods:
    """Lengths of the steps on both clocks, the first step left out where there are several (its lead is another's)."""

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
        # Of a single step nothing tells how far the device was behind before: its own work counts.
        device = np.array([int(done[0]) - int(time[graph.work_begin[mine]].min())], dtype=np.int64)
    return _Periods(ends - graph.low_ns, device)


def _slowest(after: _Periods, loader: Loading | None, case: str, behind: int) -> tuple[int, dict[str, int], str]:
    """The longest period, all of them, and the name of that one."""
    limits = {"host": after.period("host")}
    if loader is not None:
        assumed = {"best": loader.best, "middle": loader.middle, "worst": loader.worst}[case]
        limits = loader.limit(limits["host"], assumed)
    if len(after.device_ns):
        limits["device"] = max(0, after.period("device") - behind)
    bound_by = max(limits, key=lambda name: limits[name])
    return limits[bound_by], limits, bound_by


def _spread(unchanged: _Periods, after: _Periods, bound_by: str) -> float:
    """Two standard errors of the mean changed step, ns, by the steps themselves or by their differences to the
    unchanged ones, whichever vary less; 0 for a single step, of which nothing is known."""
    clock = "device" if bound_by == "device" else "host"
    before, now = (getattr(one, f"{clock}_ns") for one in (unchanged, after))
    if len(now) < 2 or len(now) != len(before):
        return 0.0
    deviation = min(float((before - now).std(ddof=1)), float(now.std(ddof=1)))
    return 2 * deviation / math.sqrt(len(now))


def _split_step(graph: StepGraph, weight: Int64s, time: Int64s, bound_by: str, step: int) -> tuple[int, ...]:
    """The kinds on the path through the changed steps, in proportion scaled to one step, exactly."""
    parts = [0] * len(BOUND_KINDS)
    if bound_by in ("loader", "cores") or step == 0:
        parts[KIND["input"]] = step
        return tuple(parts)
    retimed = replace(graph, time_ns=time, weight_ns=weight)
    first = int(graph.boundaries[0])
    node, start = int(graph.boundaries[-1]), int(time[first]) if len(graph.boundaries) > 1 else graph.low_ns
    if bound_by == "device":
        mine = np.flatnonzero(graph.work_step >= 0)
        node = int(graph.work_end[mine[np.argmax(time[graph.work_end[mine]])]])
        start = min(start, int(time[node]))
    bound = split_retimed(retimed, node, start)
    whole = sum(bound)
    if whole == 0:
        parts[KIND["host"]] = step
        return tuple(parts)
    parts = [part * step // whole for part in bound]
    parts[max(range(len(parts)), key=lambda i: parts[i])] += step - sum(parts)
    return tuple(parts)


# ---- the changes


def _apply(at: Situation, changes: Sequence[Change]) -> tuple[Int64s, Loading | None, str]:
    """(weights after the changes, the workers beside the training or None, why they are no forecast or '')."""
    weight = at.graph.weight_ns.astype(np.float64)
    loader: Loading | None = None
    doubt = ""
    for change in changes:
        if change.kind == "loader-workers":
            loader, doubt = _free_loader(at, weight, change)
        else:
            _EFFECTS[change.kind](at, weight, change)
    return np.rint(weight).astype(np.int64), loader, doubt


def _no_input_wait(at: Situation, weight: NDArray[np.float64], change: Change) -> None:
    weight[at.graph.role == ROLE["input"]] = 0


def _free_loader(at: Situation, weight: NDArray[np.float64], change: Change) -> tuple[Loading | None, str]:
    """The main thread waits no longer than workers of the same speed make it wait; what they allow, and a doubt."""
    trace, graph = at.trace, at.graph
    rows = graph.row[graph.role == ROLE["input"]]
    names = {trace.names[i] for i in np.unique(trace.name[rows[rows >= 0]]).tolist()}
    loaders = [name for name in names if LOADER_NEXT.search(name)]
    _no_input_wait(at, weight, change)
    if loaders and not any(_SINGLE_PROCESS.search(name) for name in loaders):
        return None, (
            "the batches are made in other processes, whose speed is not in the trace; the forecast assumes that the "
            "next batch is always ready"
        )
    return measure_loading(trace, graph, change.workers_count, change.cores_count), ""


def _scale_matrix(at: Situation, weight: NDArray[np.float64], change: Change) -> None:
    kernels = _kernels_named(at, MATRIX_KERNEL) & ~_kernels_named(at, NO_MATRIX_KERNEL)
    _scale(weight, kernels | _host_ops_without_work(at, MATRIX_OP), change.factor)


def _scale_named(at: Situation, weight: NDArray[np.float64], change: Change) -> None:
    pattern = re.compile(change.pattern)
    _scale(
        weight,
        _kernels_named(at, pattern) | _work_of_ops(at, pattern) | _host_ops_without_work(at, pattern),
        change.factor,
    )


def _scale(weight: NDArray[np.float64], chosen: Bools, factor: float) -> None:
    weight[chosen] /= factor


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
    """Host time inside operators of that name which launch nothing: those that compute on the CPU."""
    graph, links, trace = at.graph, at.links, at.trace
    ranges = links.ranges
    launches = np.bincount(links.op_place[links.op_place >= 0], minlength=len(ranges))
    matched = match_names(trace, trace.name[ranges.rows], pattern) & (ranges.sum_inside(launches) == 0)
    rows = ranges.rows[ranges.find_nearest(matched) >= 0]
    own: Bools = np.isin(graph.role, [ROLE["host"], ROLE["input"]]) & np.isin(graph.row, rows)
    return own


def _free_communication(at: Situation, weight: NDArray[np.float64], change: Change) -> None:
    graph = at.graph
    weight[(graph.role == ROLE["work"]) & (graph.kind == KIND["comm"])] = 0


def _fuse_launches(at: Situation, weight: NDArray[np.float64], change: Change) -> None:
    weight[at.graph.role == ROLE["call"]] /= change.factor


def _free_launches(at: Situation, weight: NDArray[np.float64], change: Change) -> None:
    weight[np.isin(at.graph.role, [ROLE["call"], ROLE["latency"]])] = 0


def _no_host_time(at: Situation, weight: NDArray[np.float64], change: Change) -> None:
    """Operators and launching calls; Python, the loader and whatever else the host does stay."""
    graph, trace = at.graph, at.trace
    held = np.maximum(graph.row, 0)
    op = (graph.row >= 0) & np.isin(trace.category[held], [Category.CPU_OP, Category.RUNTIME])
    weight[np.isin(graph.role, [ROLE["host"], ROLE["call"]]) & op] = 0
    weight[graph.role == ROLE["latency"]] = 0


def _no_host_syncs(at: Situation, weight: NDArray[np.float64], change: Change) -> None:
    graph = at.graph
    waits = graph.role == ROLE["host_wait"]
    # A full queue is no wait that the program asked for.
    full = np.zeros(len(waits), dtype=bool)
    begins = np.zeros(len(graph.time_ns), dtype=bool)
    begins[graph.work_begin] = True
    full[waits] = begins[graph.source[waits]]
    weight[waits & ~full] = _GONE


_EFFECTS = {
    "no-input-wait": _no_input_wait,
    "faster-matmuls": _scale_matrix,
    "faster": _scale_named,
    "free-communication": _free_communication,
    "fused-launches": _fuse_launches,
    "free-launches": _free_launches,
    "no-host-time": _no_host_time,
    "no-host-syncs": _no_host_syncs,
}
