"""Steps and host events -> the nine phases of every step on the host, and the phase of every device event.

Time on the main thread belongs to the innermost thing that names a phase: a range of torch or of the user whose name is
in the tables below, a collective, a copy from the host, a backward pass. Autograd runs its pass on another thread while
the main thread is blocked, so the pass covers the main thread from its first to its last operator. After the pass, time
in which the main thread runs nothing while a collective of the host (gloo) runs elsewhere is communication. If nothing
draws the forward, it is the span from the first to the last operator between the input and a backward pass; without any
backward pass, only the frames of nn.Modules show a forward. Clearing the gradients belongs to the optimizer. Anything
that nothing names stays ``other``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.errors import InvariantError
from hotloop.core.phases import PHASES, Breakdown
from hotloop.core.timeline import RangeRow
from hotloop.core.trace import Category, Trace
from hotloop.evidence.analyze.stats import describe_phase

from .classes import COLLECTIVE_RANGE, COMM, Classes
from .intervals import Int64s, Intervals, intersect, overlap_pieces, subtract, sum_groups, unite
from .links import NONE, TORCH_RANGE, Links, Nesting, flatten, match_names, sum_outermost
from .steps import BACKWARD_NAME, PROFILER_STEP, StepWindows

Int8s = NDArray[np.int8]

PHASE = {name: i for i, name in enumerate(PHASES)}
OTHER = PHASE["other"]

PREFIX_PHASES = (
    ("enumerate(DataLoader)", "input_wait"),
    ("Optimizer.step#", "optimizer"),
    ("Optimizer.zero_grad#", "optimizer"),
    ("DistributedDataParallel.forward", "forward"),
    ("autograd::engine::evaluate_function", "backward"),
)
"""Ranges that torch itself draws, by how their names begin."""

PHRASE_PHASES: dict[str, str] = {
    "data loading": "input_wait",
    "dataloading": "input_wait",
    "data load": "input_wait",
    "dataload": "input_wait",
    "data loader": "input_wait",
    "dataloader": "input_wait",
    "load data": "input_wait",
    "load batch": "input_wait",
    "get batch": "input_wait",
    "get data": "input_wait",
    "next batch": "input_wait",
    "fetch batch": "input_wait",
    "fetch data": "input_wait",
    "batch fetch": "input_wait",
    "wait for batch": "input_wait",
    "data wait": "input_wait",
    "data fetch": "input_wait",
    "input wait": "input_wait",
    "h2d": "h2d",
    "host to device": "h2d",
    "to device": "h2d",
    "to gpu": "h2d",
    "copy batch to gpu": "h2d",
    "batch to device": "h2d",
    "forward": "forward",
    "fwd": "forward",
    "fprop": "forward",
    "compute loss": "forward",
    "loss fn": "forward",
    "loss function": "forward",
    "criterion": "forward",
    "forward backward": "other",
    "fwd bwd": "other",
    "backward": "backward",
    "bwd": "backward",
    "bprop": "backward",
    "optimizer": "optimizer",
    "optim": "optimizer",
    "opt step": "optimizer",
    "zero grad": "optimizer",
    "clip grad": "optimizer",
    "grad clip": "optimizer",
    "gradient clipping": "optimizer",
    "all reduce": "communication",
    "allreduce": "communication",
    "all gather": "communication",
    "allgather": "communication",
    "reduce scatter": "communication",
    "reducescatter": "communication",
    "all to all": "communication",
    "alltoall": "communication",
    "all2all": "communication",
    "broadcast": "communication",
    "barrier": "communication",
    "comm": "communication",
    "communication": "communication",
    "save checkpoint": "checkpoint",
    "checkpoint save": "checkpoint",
    "checkpointing": "checkpoint",
    "write checkpoint": "checkpoint",
    "validation": "validation",
    "validate": "validation",
    "evaluation": "validation",
    "evaluate": "validation",
    "eval step": "validation",
    "eval loop": "validation",
    "val step": "validation",
    "val loop": "validation",
    "logging": "other",
    "metrics": "other",
    "epoch": "other",
    "train step": "other",
    "training step": "other",
    "iteration": "other",
}
"""Whole words, in any case, of a user's range. Of several, the one that comes first in the name counts, and of those
that begin together, the longest; 'other' stops a range from taking the phase of what is around it."""

WHOLE_NAME_PHASES: dict[str, str] = {
    "data": "input_wait",
    "input": "input_wait",
    "checkpoint": "checkpoint",
    "ckpt": "checkpoint",
    "eval": "validation",
    "val": "validation",
    "loss": "forward",
    "opt": "optimizer",
    "sgd": "optimizer",
    "adam": "optimizer",
    "adamw": "optimizer",
    "step": "other",
}
"""Words that name a phase only as the complete name: 'data' in 'sparse data dist' is not a loader, and a 'checkpoint'
in a longer name may be activation checkpointing."""

HOST_COPY = re.compile(r"HtoD|HostToDevice|Host2Device", re.IGNORECASE)
DEVICE_TO_HOST_COPY = re.compile(r"DtoH|DeviceToHost|Device2Host", re.IGNORECASE)
COPY_OPERATOR = re.compile(r"^aten::(?:to|_to_copy|copy_|cuda|_pin_memory|pin_memory)$")
BACKWARD_FRAME = re.compile(
    r"(?:torch/_tensor\.py|torch/tensor\.py|torch/autograd/__init__\.py)\(\d+\): backward$"
    r"|run_backward|_engine_run_backward"
)
MODULE_FRAME = re.compile(r"^nn\.Module: ")
HOST_COLLECTIVE = re.compile(r"^(?:gloo|mpi|ucc):")
"""Collectives that a thread of the host carries out; of NCCL's, only the launch is on the host."""
CHECKPOINT_FRAME = re.compile(r"(?:torch/serialization\.py|torch/distributed/checkpoint/.*\.py)\(\d+\): _?save")

_WORD = re.compile(r"[a-z]+\d*[a-z]*|\d+")


@dataclass(frozen=True, slots=True)
class HostPhases:
    """The phase of every instant of the main thread, and which threads run backward passes."""

    main_thread: int | None
    backward_threads: tuple[int, ...]
    edge_ns: Int64s
    """Ascending; segment i is [edge i, edge i + 1)."""
    phase: Int8s
    """Phase of each segment."""
    seen: tuple[str, ...]
    """The phases that something names, in the order of PHASES."""

    def find_phase(self, time_ns: Int64s) -> Int64s:
        """Index in PHASES of the main thread's phase at each instant; ``other`` outside of all segments."""
        at = np.searchsorted(self.edge_ns, time_ns, side="right") - 1
        inside = (at >= 0) & (at < len(self.phase))
        found = np.full(len(time_ns), OTHER, dtype=np.int64)
        found[inside] = self.phase[at[inside]]
        return found


@dataclass(frozen=True, slots=True)
class _Marks:
    """Stretches of the main thread that name a phase."""

    start_ns: Int64s
    end_ns: Int64s
    phase: Int8s


def name_phase(name: str) -> str | None:
    """The phase that a range's name means; None if it takes the phase of what is around it.

    >>> name_phase("## forward:sparse ##"), name_phase("DATA_LOADING"), name_phase("my block")
    ('forward', 'input_wait', None)
    """
    for prefix, phase in PREFIX_PHASES:
        if name.startswith(prefix):
            return phase
    if COLLECTIVE_RANGE.search(name):
        return "communication"
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    words = _WORD.findall(spaced)
    if len(words) == 1 and words[0] in WHOLE_NAME_PHASES:
        return WHOLE_NAME_PHASES[words[0]]
    for at in range(len(words)):
        for length in (4, 3, 2, 1):
            phrase = " ".join(words[at : at + length])
            if len(words) >= at + length and phrase in PHRASE_PHASES:
                return PHRASE_PHASES[phrase]
    return None


def find_host_phases(trace: Trace, links: Links, steps: StepWindows) -> HostPhases:
    """The phases of the main thread over the whole trace."""
    main = steps.main_thread
    empty = np.empty(0, dtype=np.int64)
    if main is None:
        return HostPhases(None, (), empty, np.empty(0, dtype=np.int8), ())
    ranges = links.ranges
    backward = find_backward_threads(trace, links, main)
    drawn, drawn_phases = _mark_ranges(trace, ranges, main)
    marks = [drawn, _mark_copies(trace, links, main), _mark_frames(trace, main)]
    passes = _find_backward_passes(trace, links, main, backward, marks)
    marks.append(passes)
    marks.append(_find_collective_waits(trace, links, main, passes))
    if PHASE["forward"] not in drawn_phases:
        marks.append(_infer_forward(trace, links, main, steps, _join(marks)))
    marked = _join(marks)
    flat = flatten(marked.start_ns, marked.end_ns)
    return HostPhases(
        main_thread=main,
        backward_threads=backward,
        edge_ns=flat.edge_ns,
        phase=np.append(marked.phase, OTHER)[flat.innermost].astype(np.int8),
        seen=tuple(PHASES[p] for p in np.unique(marked.phase).tolist()),
    )


def find_backward_threads(trace: Trace, links: Links, main: int) -> tuple[int, ...]:
    """The threads but the main one on which autograd ran backward operators."""
    ranges = links.ranges
    operator = match_names(trace, trace.name[ranges.rows], BACKWARD_NAME)
    joined, forward_thread = trace.integers("forward_thread")
    operator |= np.isin(ranges.rows, joined[forward_thread > 0])
    threads = np.unique(ranges.thread[operator & (ranges.thread != main)])
    return tuple(int(t) for t in threads)


def split_steps(phases: HostPhases, steps: StepWindows) -> NDArray[np.int64]:
    """Host time of every step (rows) by phase (columns); every row sums to its step exactly."""
    table = np.zeros((len(steps), len(PHASES)), dtype=np.int64)
    if len(steps) == 0:
        return table
    if len(phases.phase):
        segments = Intervals(phases.edge_ns[:-1], phases.edge_ns[1:])
        windows = Intervals(steps.start_ns, steps.end_ns)
        pieces = overlap_pieces(windows, segments)
        np.add.at(table, (pieces.of_a, phases.phase[pieces.of_b]), pieces.length_ns)
    # If the main thread shows nothing at all, nothing is known: other.
    table[:, OTHER] += (steps.end_ns - steps.start_ns) - table.sum(axis=1)
    if table.min() < 0:
        raise InvariantError("the phases of a step are longer than the step")
    return table


def build_breakdown(table: NDArray[np.int64], complete: NDArray[np.bool_]) -> Breakdown | None:
    """The breakdown of the complete steps (of all steps if none is complete); None without time."""
    kept = table[complete] if complete.any() else table
    total = int(kept.sum())
    if total == 0:
        return None
    weight = np.ones(len(kept), dtype=np.int64)
    return Breakdown({name: describe_phase(kept[:, i], weight, total) for i, name in enumerate(PHASES)})


def find_work_phases(trace: Trace, links: Links, classes: Classes, phases: HostPhases) -> Int64s:
    """Index in PHASES of every piece of device work; NONE if its launch is unknown and its class does not determine it.

    comm is communication, a copy from the host is h2d, the rest has the phase of the host at its launch.
    """
    found = np.full(links.work_count, NONE, dtype=np.int64)
    known = np.flatnonzero(links.launch_row >= 0)
    calls = links.launch_row[known]
    if phases.main_thread is not None:
        found[known] = phases.find_phase(trace.start_ns[calls])
        on_backward = np.isin(trace.thread[calls], phases.backward_threads)
        found[known[on_backward]] = PHASE["backward"]
    name = trace.name[links.device_rows]
    copies = trace.category[links.device_rows] == Category.MEMCPY
    found[copies & match_names(trace, name, HOST_COPY)] = PHASE["h2d"]
    found[classes.kind == COMM] = PHASE["communication"]
    return found


def sum_by_phase(links: Links, work: Int64s, work_phase: Int64s) -> tuple[int, ...]:
    """Durations of device work by phase (PHASES order); work without one is left out."""
    return tuple(sum_groups(work_phase[work], links.end_ns[work] - links.start_ns[work], len(PHASES)).tolist())


def list_ranges(trace: Trace, links: Links, top: int) -> tuple[RangeRow, ...]:
    """The user's ranges by name, the longest in total first; step markers are left out."""
    ranges = links.ranges
    name = trace.name[ranges.rows]
    drawn = trace.category[ranges.rows] == Category.ANNOTATION
    drawn |= match_names(trace, name, TORCH_RANGE)
    drawn &= ~match_names(trace, name, PROFILER_STEP)
    launched_ns = sum_groups(links.op_place, links.end_ns - links.start_ns, len(ranges))
    totals = sum_outermost(ranges, np.where(drawn, name, NONE), launched_ns)
    rows = [
        RangeRow(
            name=trace.names[one],
            phase=name_phase(trace.names[one]),
            count=int(totals.count[i]),
            total_ns=int(totals.host_ns[i]),
            device_ns=int(totals.device_ns[i]),
        )
        for i, one in enumerate(totals.key.tolist())
    ]
    return tuple(sorted(rows, key=lambda r: (-r.total_ns, r.name))[:top])


def _mark_ranges(trace: Trace, ranges: Nesting, main: int) -> tuple[_Marks, set[int]]:
    """Ranges and collective operators of the main thread whose names are in the tables."""
    low, high = ranges.bounds.get(main, (0, 0))
    rows = ranges.rows[low:high]
    name = trace.name[rows]
    drawn = trace.category[rows] == Category.ANNOTATION
    distinct = np.unique(name)
    code = np.full(int(distinct.max()) + 1 if len(distinct) else 1, NONE, dtype=np.int8)
    is_range = np.zeros(len(code), dtype=bool)
    is_range[np.unique(name[drawn])] = True
    for one in distinct.tolist():
        text = trace.names[one]
        if PROFILER_STEP.match(text):
            continue
        # An operator is not a range of the user: only torch's own names count ('aten::linear_backward' is one
        # operator).
        # Old releases record torch's ranges as operators.
        known = any(text.startswith(prefix) for prefix, _ in PREFIX_PHASES) or COLLECTIVE_RANGE.search(text)
        phase = name_phase(text) if known or is_range[one] else None
        if phase is not None:
            code[one] = PHASE[phase]
    phase_of = code[name]
    at = np.flatnonzero(phase_of >= 0)
    marks = _Marks(ranges.start_ns[low:high][at], ranges.end_ns[low:high][at], phase_of[at])
    by_range = {int(p) for p in np.unique(phase_of[at[drawn[at]]]).tolist()}
    return marks, by_range


def _mark_copies(trace: Trace, links: Links, main: int) -> _Marks:
    """The operators of the main thread that copied from the host to the device (the call itself without one)."""
    rows = links.device_rows
    copies = trace.category[rows] == Category.MEMCPY
    copies &= match_names(trace, trace.name[rows], HOST_COPY) & (links.launch_row >= 0)
    work = np.flatnonzero(copies)
    work = work[trace.thread[links.launch_row[work]] == main]
    ranges = links.ranges
    is_copy = match_names(trace, trace.name[ranges.rows], COPY_OPERATOR)
    # Up through aten::to -> aten::_to_copy -> aten::copy_: the wait for the copy is in the outermost of them.
    top = ranges.climb_within(links.op_place[work], is_copy)
    operators = np.unique(top[top >= 0])
    calls = np.unique(links.launch_row[work[top < 0]])
    start = np.concatenate([ranges.start_ns[operators], trace.start_ns[calls]])
    end = np.concatenate([ranges.end_ns[operators], trace.start_ns[calls] + trace.duration_ns[calls]])
    return _Marks(start, end, np.full(len(start), PHASE["h2d"], dtype=np.int8))


def _mark_frames(trace: Trace, main: int) -> _Marks:
    """Python functions of the main thread that identify a phase: backward() and saving a checkpoint."""
    rows = np.flatnonzero((trace.category == Category.PYTHON) & (trace.thread == main))
    name = trace.name[rows]
    backward = match_names(trace, name, BACKWARD_FRAME)
    checkpoint = match_names(trace, name, CHECKPOINT_FRAME)
    at = rows[backward | checkpoint]
    phase = np.where(backward, PHASE["backward"], PHASE["checkpoint"])[backward | checkpoint]
    return _Marks(trace.start_ns[at], trace.start_ns[at] + trace.duration_ns[at], phase.astype(np.int8))


def _find_backward_passes(
    trace: Trace, links: Links, main: int, threads: Sequence[int], marks: Sequence[_Marks]
) -> _Marks:
    """Stretches in which autograd ran: backward operators in a row, until the main thread does something else."""
    ranges = links.ranges
    on_main = np.zeros(len(ranges), dtype=bool)
    low, high = ranges.bounds.get(main, (0, 0))
    on_main[low:high] = True
    operator = match_names(trace, trace.name[ranges.rows], BACKWARD_NAME)
    mine = operator & on_main
    elsewhere = np.isin(ranges.thread, threads) if threads else np.zeros(len(ranges), dtype=bool)
    starts, ends = [ranges.start_ns[mine | elsewhere]], [ranges.end_ns[mine | elsewhere]]
    if threads:
        calls = np.flatnonzero((trace.category == Category.RUNTIME) & np.isin(trace.thread, threads))
        starts.append(trace.start_ns[calls])
        ends.append(trace.start_ns[calls] + trace.duration_ns[calls])
    busy = unite(np.concatenate(starts), np.concatenate(ends))
    if len(busy) == 0:
        return _no_marks()
    # Anything that the main thread starts between two backward operators ends the pass, unless one of them encloses it.
    inside = np.zeros(len(ranges), dtype=bool)
    inside[low:high] = ranges.find_nearest(mine)[low:high] >= 0
    main_starts = ranges.start_ns[on_main & ~inside]
    main_calls = np.flatnonzero((trace.category == Category.RUNTIME) & (trace.thread == main))
    activity = np.sort(np.concatenate([main_starts, trace.start_ns[main_calls]]))
    before = np.searchsorted(activity, busy.end_ns[:-1], side="left")
    until = np.searchsorted(activity, busy.start_ns[1:], side="right")
    split = np.ones(len(busy), dtype=bool)
    split[1:] = until > before
    first = np.flatnonzero(split)
    last = np.append(first[1:], len(busy)) - 1
    return _Marks(busy.start_ns[first], busy.end_ns[last], np.full(len(first), PHASE["backward"], dtype=np.int8))


def _find_collective_waits(trace: Trace, links: Links, main: int, passes: _Marks) -> _Marks:
    """Time after a backward pass in which the main thread has not begun anything and a collective runs on another
    thread of the host: DistributedDataParallel waits there for its last buckets."""
    ranges = links.ranges
    collective = match_names(trace, trace.name[ranges.rows], HOST_COLLECTIVE) & (ranges.thread != main)
    running = unite(ranges.start_ns[collective], ranges.end_ns[collective])
    low, high = ranges.bounds.get(main, (0, 0))
    begun = ranges.start_ns[low:high]
    at = np.searchsorted(begun, passes.end_ns, side="left")
    followed = at < len(begun)
    if len(running) == 0 or not followed.any():
        return _no_marks()
    after = unite(passes.end_ns[followed], begun[at[followed]])
    waits = intersect(after, running)
    return _Marks(waits.start_ns, waits.end_ns, np.full(len(waits), PHASE["communication"], dtype=np.int8))


def _mark_modules(trace: Trace, main: int) -> _Marks:
    rows = np.flatnonzero((trace.category == Category.PYTHON) & (trace.thread == main))
    rows = rows[match_names(trace, trace.name[rows], MODULE_FRAME)]
    frames = unite(trace.start_ns[rows], trace.start_ns[rows] + trace.duration_ns[rows])
    return _Marks(frames.start_ns, frames.end_ns, np.full(len(frames), PHASE["forward"], dtype=np.int8))


def _no_marks() -> _Marks:
    empty = np.empty(0, dtype=np.int64)
    return _Marks(empty, empty, np.empty(0, dtype=np.int8))


def _infer_forward(trace: Trace, links: Links, main: int, steps: StepWindows, marks: _Marks) -> _Marks:
    """From the first to the last operator of each stretch without marks, if a backward pass of the same step follows. A
    trace without any backward pass has a forward only where nn.Modules ran."""
    backward = marks.phase == PHASE["backward"]
    if not backward.any():
        return _mark_modules(trace, main)
    ranges = links.ranges
    low, high = ranges.bounds.get(main, (0, 0))
    at = np.arange(low, high)
    at = at[trace.category[ranges.rows[at]] == Category.CPU_OP]
    at = at[~match_names(trace, trace.name[ranges.rows[at]], PROFILER_STEP)]
    operators = unite(ranges.start_ns[at], ranges.end_ns[at])
    marked = unite(marks.start_ns, marks.end_ns)
    free = subtract(operators, marked)
    if len(free) == 0 or len(steps) == 0:
        return _no_marks()
    last_backward = np.sort(marks.start_ns[backward])
    step = steps.find_step(free.start_ns)
    # The last backward pass that begins in the same step.
    index = np.searchsorted(last_backward, steps.end_ns, side="left") - 1
    until = np.where(index >= 0, last_backward[np.maximum(index, 0)], np.iinfo(np.int64).min)
    until = np.where(until >= steps.start_ns, until, np.iinfo(np.int64).min)
    keep = (step >= 0) & (free.start_ns < until[np.maximum(step, 0)])
    inputs = np.sort(marks.start_ns[marks.phase == PHASE["input_wait"]])
    if len(inputs):
        # Operators before the first batch of the step prepare something else.
        index = np.searchsorted(inputs, steps.start_ns, side="left")
        since = np.where(index < len(inputs), inputs[np.minimum(index, len(inputs) - 1)], np.iinfo(np.int64).min)
        since = np.where(since < steps.end_ns, since, np.iinfo(np.int64).min)
        keep &= free.start_ns >= since[np.maximum(step, 0)]
    start, end, step = free.start_ns[keep], free.end_ns[keep], step[keep]
    if len(start) == 0:
        return _no_marks()
    # Join neighbors with nothing marked between them: the Python between two operators of a forward is forward.
    border = np.searchsorted(marked.start_ns, end[:-1], side="left") < np.searchsorted(
        marked.start_ns, start[1:], side="right"
    )
    split = np.ones(len(start), dtype=bool)
    split[1:] = border | (step[1:] != step[:-1])
    first = np.flatnonzero(split)
    last = np.append(first[1:], len(start)) - 1
    return _Marks(start[first], end[last], np.full(len(first), PHASE["forward"], dtype=np.int8))


def _join(marks: Sequence[_Marks]) -> _Marks:
    return _Marks(
        np.concatenate([m.start_ns for m in marks]),
        np.concatenate([m.end_ns for m in marks]),
        np.concatenate([m.phase for m in marks]),
    )
