"""Events of one training thread -> rows: an exclusive-time phase stack whose fields sum to the row exactly.

Entering and leaving a phase charges the time since the last event to the field on top of the stack. An empty stack
charges the gap field that belongs to the last phase. The clock is that of the events.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hotloop.core.recording import (
    CLOSED_BY_BACKWARD,
    CLOSED_BY_END,
    CLOSED_BY_OPTIMIZER,
    CLOSED_BY_SCALER_SKIP,
    FIELD,
    FLAG_DEEP,
    FLAG_FOREIGN_PROFILER,
    FLAG_WATCHED_ALL,
    OTHER_WAIT_FIELD,
    STEP_FIELDS,
    TIME_FIELDS,
    UNKNOWN,
)

OTHER = FIELD["other_ns"]
INPUT = FIELD["input_wait_ns"]
ITERATOR = FIELD["iterator_ns"]
H2D = FIELD["h2d_ns"]
FORWARD = FIELD["forward_ns"]
NOGRAD = FIELD["nograd_ns"]
BACKWARD = FIELD["backward_ns"]
OPTIMIZER = FIELD["optimizer_ns"]
COMMUNICATION = FIELD["communication_ns"]
CHECKPOINT = FIELD["checkpoint_ns"]
AFTER_INPUT = FIELD["after_input_ns"]
AFTER_FORWARD = FIELD["after_forward_ns"]
AFTER_NOGRAD = FIELD["after_nograd_ns"]
AFTER_BACKWARD = FIELD["after_backward_ns"]
GAPS = (OTHER, AFTER_INPUT, AFTER_FORWARD, AFTER_NOGRAD, AFTER_BACKWARD)

GAP_AFTER = {
    INPUT: AFTER_INPUT,
    ITERATOR: AFTER_INPUT,
    H2D: AFTER_INPUT,
    FORWARD: AFTER_FORWARD,
    NOGRAD: AFTER_NOGRAD,
    BACKWARD: AFTER_BACKWARD,
    OPTIMIZER: OTHER,
}
"""The gap field that follows a phase; a phase that is not here leaves the gap as it was."""


OTHER_WAIT = FIELD[OTHER_WAIT_FIELD]
"""The phase that stack samples count for while a loader that does not feed backward is waited for."""

_UNKNOWN_FIELDS = (
    "padded_tokens",
    "tokens",
    "padding_tokens",
    "longest_tokens",
    "synced_backwards",
    "device_forward_ns",
    "device_backward_ns",
    "device_optimizer_ns",
    "device_h2d_ns",
    "device_allocated_bytes",
    "device_reserved_bytes",
)
Row = array  # of int64: array("q")
TEMPLATE = array("q", [0] * len(STEP_FIELDS))
for _name in _UNKNOWN_FIELDS:
    TEMPLATE[FIELD[_name]] = UNKNOWN
TEMPLATE[FIELD["rows_merged"]] = 1
TEMPLATE[FIELD["flags"]] = FLAG_WATCHED_ALL

INDEX = FIELD["index"]
CLOSED_BY = FIELD["closed_by"]
OPTIMIZER_INDEX = FIELD["optimizer_index"]
START = FIELD["start_ns"]
END = FIELD["end_ns"]
CPU = FIELD["cpu_ns"]
FLAGS = FIELD["flags"]
BACKWARDS = FIELD["backwards"]
_STEPPED = -1
TIMES = frozenset(FIELD[name] for name in TIME_FIELDS)
KEPT = TIMES | {
    FIELD[name]
    for name in (
        "index", "closed_by", "optimizer_index", "rows_merged", "start_ns", "end_ns", "rss_bytes",
        "device_allocated_bytes", "device_reserved_bytes", "flags",
    )
}  # fmt: skip
RECENT = 32
"""Rows that were only counted are assumed to be like this many timed ones."""

MAX_CLOSES = 16
"""This many optimizer steps in a row close rows; further ones before the next backward do not (one per parameter)."""


class Recorder:
    """The phase stack and the current row of one training thread.

    ``emit`` receives every finished row (which it must not keep), the first one at the first completed backward or
    optimizer step. ``on_row`` is called after it. ``clock`` gives ns, and rows hold ns since ``anchor_ns``.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.anchor_ns = 0
        self.emit: Callable[[Row[int]], None] | None = None
        self.on_row: Callable[[Row[int]], None] | None = None
        self.reset()

    def reset(self) -> None:
        """Forget everything, as in a freshly forked child."""
        self._template = TEMPLATE[:]
        self.row = TEMPLATE[:]
        self.stack = [OTHER]
        self.last_ns = 0
        self.rows = 0
        self.started = False
        self._flags = FLAG_WATCHED_ALL
        self.other_wait = False
        """Whether the wait on top of the stack is for a loader that does not feed backward."""
        self._cpu_ns = self._cpu_last_ns = 0
        self._recent: deque[Row[int]] = deque(maxlen=RECENT)
        self.optimizers = OptimizerNumbers()
        """Numbers in order of their first steps, by identity."""
        self.seen_optimizer = False
        self.pending_close: int | None = None
        self._scaler_ns = 0
        self.closes = 0
        self.burst: _Burst | None = None

    @property
    def in_deep_window(self) -> bool:
        """Whether operators are being noted in this row."""
        return bool(self._flags & FLAG_DEEP)

    @in_deep_window.setter
    def in_deep_window(self, value: bool) -> None:
        self.set_flag(FLAG_DEEP, value)

    @property
    def foreign_profiler(self) -> bool:
        """Whether somebody else's profiler is on in this row."""
        return bool(self._flags & FLAG_FOREIGN_PROFILER)

    def set_flag(self, flag: int, value: bool) -> None:
        self._flags = self._flags | flag if value else self._flags & ~flag
        self.set_known(FLAGS, self._flags)

    def set_known(self, field: int, value: int) -> None:
        """The newest value of a field that holds for this row and those after it; from any thread."""
        self._template[field] = value
        self.row[field] = value

    # -- the phase stack ------------------------------------------------------------------------------------------

    def enter(self, field: int) -> None:
        """Charge what has passed to the top of the stack; ``field`` is on top from here."""
        now = self.clock()
        stack = self.stack
        if self.last_ns == 0:
            self._open(now)
        self._charge(now)
        stack.append(field)

    def leave(self) -> None:
        """Charge the top of the stack and take it off."""
        now = self.clock()
        stack = self.stack
        if len(stack) == 1:  # a reset (fork, new row owner) in between: nothing of ours is open
            return
        self._charge(now)
        field = stack.pop()
        if len(stack) == 1:
            stack[0] = GAP_AFTER.get(field, stack[0])

    def unwind(self, depth: int) -> None:
        """Leave until the stack is ``depth`` deep: what an exception left open."""
        while len(self.stack) > max(depth, 1):
            self.leave()

    def _charge(self, now: int) -> None:
        """Charge the time since the last charge to the top of the stack."""
        self.row[self.stack[-1]] += now - self.last_ns
        self.last_ns = now

    def _open(self, now: int) -> None:
        self.row[START] = now - self.anchor_ns
        self.last_ns = now

    # -- bursts of forwards without gradients (validation, rollouts) ------------------------------------------------

    def begin_nograd(self, eval_mode: bool) -> None:
        """An outermost forward without gradients begins; call before ``enter``."""
        if self.burst is None:
            self._begin_burst()
        if self.burst is not None:
            self.burst.eval_mode |= eval_mode
            self.burst.forwards += 1

    def is_evaluating(self) -> bool:
        """Whether a burst is going on over a loader that is not known to feed backward."""
        return self.burst is not None and self.burst.other_loader

    def end_nograd(self, graph_ns: int = 0) -> None:
        """It ended; the burst lasts at least until here. ``graph_ns``: it took so long, and built a graph."""
        if self.burst is not None:
            self.burst.mark(self.row, graph_ns)

    def give_back_forward(self) -> None:
        """A backward begins: what built a graph of the burst's last batch belongs to the training."""
        burst, row = self.burst, self.row
        if burst is not None and burst.graph_ns:
            for name, graphs in (("nograd", -1), ("forward", 1)):
                row[FIELD[f"{name}_ns"]] += graphs * burst.graph_ns
                row[FIELD[f"{name}_forwards" if graphs < 0 else "forwards"]] += graphs * burst.graph_count
            burst.take_back()

    def other_loader(self) -> None:
        """A batch of a loader that does not feed backward is about to be fetched."""
        if self.burst is None:
            self._begin_burst()
        if self.burst is not None:
            self.burst.other_loader = True
            self.burst.begin_batch()

    def _begin_burst(self) -> None:
        if self.last_ns:
            now = self.clock()
            self._charge(now)
        self.burst = _Burst(self.row)

    def drop_empty_burst(self) -> None:
        """A batch to train on came with that of another loader (``zip`` of two): the other one is not validated on."""
        if self.burst is not None and not self.burst.forwards:
            self.burst = None

    def end_burst(self) -> None:
        """Training continues: what the burst covered is added to the row's burst fields."""
        burst = self.burst
        if burst is None:
            return
        self.burst = None
        if burst.forwards:
            burst.other_loader |= 0 < burst.own_data == burst.learner_forwards
            burst.add_to(self.row)

    # -- rows -----------------------------------------------------------------------------------------------------

    def optimizer_began(self) -> None:
        """An optimizer's step begins."""
        if self.burst is not None:
            self.end_burst()
        self.enter(OPTIMIZER)
        if self._scaler_ns > 0:
            self.row[FIELD["scaler_ns"]] += self.last_ns - self._scaler_ns
            self._scaler_ns = _STEPPED

    def scaler_began(self) -> None:
        """GradScaler.step: its own work is optimizer time and also counted apart."""
        self.enter(OPTIMIZER)
        self._scaler_ns = self.last_ns

    def scaler_ended(self, depth: int) -> bool:
        """Back from GradScaler.step at stack depth ``depth``; True when it called the optimizer."""
        self.unwind(depth)
        stepped = self._scaler_ns == _STEPPED
        if not stepped:
            self.row[FIELD["scaler_ns"]] += self.last_ns - self._scaler_ns
        self._scaler_ns = 0
        return stepped

    def optimizer_ended(self, depth: int, index: int) -> None:
        """An optimizer's step is complete and the stack goes back to ``depth``.

        The row closes, unless the step was nested in another optimizer's or in backward.
        """
        stack = self.stack
        if len(stack) == depth + 1:
            self.leave()
        else:
            self.unwind(depth)
        self.seen_optimizer = True
        if len(stack) > 1:
            if OPTIMIZER in stack[(1 if self._scaler_ns == _STEPPED else 0) + 1 :]:
                return
            if BACKWARD in stack:
                self.pending_close = index
                return
        self.closes += 1
        if self.closes <= MAX_CLOSES:
            self.close(CLOSED_BY_OPTIMIZER, index)

    def cpu_read(self, cpu_ns: int) -> None:
        """CPU time of the entire process so far, read at the end of an optimizer's step."""
        self._cpu_ns = cpu_ns

    @property
    def sampled_field(self) -> int:
        """The phase that a stack sample counts for now."""
        top = self.stack[-1]
        return OTHER_WAIT if self.other_wait and top in (INPUT, ITERATOR) else top

    def step_skipped(self, index: int) -> None:
        """GradScaler found inf or NaN and did not call the optimizer: a step all the same."""
        self.seen_optimizer = True
        self.close(CLOSED_BY_SCALER_SKIP, index)

    def backward_ended(self, retain_graph: bool) -> None:
        """The outermost backward is complete and has been left."""
        row = self.row
        row[BACKWARDS] += 1
        self.closes = 0
        if retain_graph:
            row[FIELD["retained_backwards"]] += 1
        if self.pending_close is not None:
            index, self.pending_close = self.pending_close, None
            self.close(CLOSED_BY_OPTIMIZER, index)
        elif not self.seen_optimizer:
            self.close(CLOSED_BY_BACKWARD, UNKNOWN)

    def close(self, closed_by: int, optimizer_index: int) -> None:
        """End the row at the last event, hand it on and begin the next one there."""
        row = self.row
        if self.burst is not None:
            self.end_burst()
        if self.last_ns == 0:
            self._open(self.clock())
        row[INDEX] = rows = self.rows
        row[CLOSED_BY] = closed_by
        row[OPTIMIZER_INDEX] = optimizer_index
        row[END] = self.last_ns - self.anchor_ns
        if self._cpu_ns:
            row[CPU] = self._cpu_ns - self._cpu_last_ns if self._cpu_last_ns else 0
            self._cpu_last_ns, self._cpu_ns = self._cpu_ns, 0
        self.rows = rows = rows + 1
        if closed_by == CLOSED_BY_OPTIMIZER:
            self._recent.append(row[:])
        self.started = True
        if self.emit is not None:
            self.emit(row)
        try:
            if self.on_row is not None:
                self.on_row(row)
        finally:  # it may end the training here, and the tail must not tell this row again
            row[:] = self._template
            row[START] = self.last_ns - self.anchor_ns

    def close_rested(self, steps: int) -> None:
        """``steps`` rows that nobody timed, in one: as long as they took, and divided as the last rows were."""
        known, now = self._recent, self.clock()
        if not known or not self.last_ns or steps <= 0:
            return
        self._charge(now)
        row, start_ns = self.row, self.row[START]
        span_ns, count = now - self.anchor_ns - start_ns, len(known)
        sums = [UNKNOWN if UNKNOWN in values else sum(values) for values in zip(*known, strict=True)]
        whole_ns = max(1, sum(sums[field] for field in TIMES))
        for field, value in enumerate(sums):
            if field in KEPT:
                continue
            row[field] = value if value == UNKNOWN else value * steps // count
        for field in TIMES:
            row[field] = sums[field] * span_ns // whole_ns
        row[OTHER] += span_ns - sum(row[field] for field in TIMES)
        row[INDEX], row[CLOSED_BY], row[OPTIMIZER_INDEX] = self.rows, CLOSED_BY_OPTIMIZER, known[-1][OPTIMIZER_INDEX]
        row[END], row[FLAGS], row[FIELD["rows_merged"]], row[CPU] = now - self.anchor_ns, self._flags, steps, 0
        self.rows += steps
        self.stack[0] = OTHER
        if self.emit is not None:
            self.emit(row)
        row[:] = self._template
        row[START] = now - self.anchor_ns

    def leave_out(self) -> None:
        """The time since the row ended is ours: it belongs to no row. To be called from ``on_row`` only.

        The process's CPU time, which is not read in every row, keeps it.
        """
        self.last_ns = self.clock()

    def close_tail(self) -> None:
        """At the end of the process: what happened after the last row becomes a row of its own."""
        if self.last_ns == 0:
            return
        now = self.clock()
        self._charge(now)
        del self.stack[1:]
        self.close(CLOSED_BY_END, UNKNOWN)


class _Burst:
    """Forwards without gradients in a row: what the fields held at its start and at its last forward's end."""

    __slots__ = (
        "_before", "_covered", "_start", "eval_mode", "forwards", "graph_count", "graph_ns", "learner_forwards",
        "other_loader", "own_data",
    )  # fmt: skip

    def __init__(self, row: Row[int]) -> None:
        self.eval_mode = False
        self.other_loader = False
        self.forwards = 0
        self.learner_forwards = self.own_data = 0
        """Forwards of models that are trained, and how many of these evaluate on data that stays the same."""
        self.graph_ns = self.graph_count = 0
        """Time and number of those forwards of the last batch that built a graph."""
        self._start = _burst_sums(row)
        self._covered = (0, 0, 0)
        self._before = (0, self._covered)

    def begin_batch(self) -> None:
        self._before = (self.forwards, self._covered)
        self.graph_ns = self.graph_count = 0

    def take_back(self) -> None:
        """As it was before its last batch."""
        self.forwards, self._covered = self._before
        self.graph_ns = self.graph_count = 0

    def mark(self, row: Row[int], graph_ns: int = 0) -> None:
        self.graph_ns += graph_ns
        self.graph_count += graph_ns > 0
        (input_ns, gap_ns, h2d_ns), start = _burst_sums(row), self._start
        self._covered = (input_ns - start[0], gap_ns - start[1], h2d_ns - start[2])

    def add_to(self, row: Row[int]) -> None:
        counted = (1, self.other_loader, self.eval_mode)
        for name, value in zip(_BURST_FIELDS, (*self._covered, *counted), strict=True):
            row[FIELD[name]] += value


_BURST_FIELDS = (
    "burst_input_ns", "burst_gap_ns", "burst_h2d_ns", "bursts", "bursts_other_loader", "bursts_eval_mode",
)  # fmt: skip


def _burst_sums(row: Row[int]) -> tuple[int, int, int]:
    return row[INPUT] + row[ITERATOR], sum([row[g] for g in GAPS]), row[H2D]


MOST_BUILT = 10_000
"""Objects that are remembered at a time: loaders and models are made too."""

Place = list[object]
"""File, line and function where an optimizer was made, as the training reported it."""


@dataclass(slots=True)
class _Numbered:
    """The optimizer that has a number now, and when (counted in steps of any) it stepped first and last."""

    key: int
    place: Place
    first: int
    last: int


class OptimizerNumbers:
    """Identities of optimizers -> their numbers, in order of their first steps: ``built`` for every new object,
    ``index_of`` at each step.

    Some trainings rebuild an optimizer each epoch, or each step. It has the number of the one that it replaces: the
    one made at the same place that had stepped before it was built. So steps are counted by what trains.
    """

    def __init__(self) -> None:
        self._index: dict[int, int] = {}
        self._built: dict[int, int] = {}
        self._numbered: dict[int, _Numbered] = {}
        self._count = self._steps = 0

    def __len__(self) -> int:
        return self._count

    def built(self, key: int) -> None:
        """An object was made at an address; what was there before is gone."""
        self._index.pop(key, None)
        if len(self._built) > MOST_BUILT:
            self._built.clear()
        self._built[key] = self._steps

    def index_of(self, key: int, place: Place | None) -> int:
        """The number of the optimizer that steps now."""
        index = self._index.get(key)
        self._steps += 1
        if index is None:
            index = self._replaced(key, place)
            if index is None:
                index, self._count = self._count, self._count + 1
            else:
                self._index.pop(self._numbered[index].key, None)
            self._index[key] = index
            if place is not None:
                self._numbered[index] = _Numbered(key, place, self._steps, self._steps)
        elif index in self._numbered:
            self._numbered[index].last = self._steps
        return index

    def _replaced(self, key: int, place: Place | None) -> int | None:
        """The number whose optimizer was made at the same place and had stepped when this one was built; of several
        the one that has waited longest."""
        built = self._built.get(key)
        if built is None or place is None:
            return None
        before = [
            (one.last, index) for index, one in self._numbered.items() if one.place == place and one.first <= built
        ]
        return min(before)[1] if before else None
