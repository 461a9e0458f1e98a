"""The operations of a pipeline training -> what its stragglers cost: a replay of each step, as it was and made even.

The method is that of "Understanding Stragglers in Large Model Training Using What-if Analysis" (arXiv:2505.05713). An
operation starts when those that it depends on have ended; one that communicates starts with the last of its group. The
replay of the recorded durations is compared with one in which every operation of a kind takes as long as the others:
the mean of what computes, the median of what communicates, counted from the latest start in its group.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hotloop import __version__
from hotloop.core.errors import TraceError
from hotloop.core.findings import Basis, Saving, severity_of
from hotloop.core.stragglers import (
    BACKWARD,
    COLLECTIVES,
    FORWARD,
    OPERATIONS,
    TRANSFERS,
    OperationTable,
    Slowdown,
    StepSlowdown,
    StragglerReport,
    WorkerSlowdown,
)

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

AFTER_BACKWARD = (
    "gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter",
    "separate-grads-all-reduce", "optimizer-clip-main-grad", "optimizer",
)  # fmt: skip
"""What follows a worker's last backward, in this order."""
SLOWEST_RATIO = 0.03
"""The part of the workers that M_W is about (section 5.1 of the paper)."""
CLOCK_ERROR_S = 0.01
"""A transfer that ends this long before its latest start shows an error of the clocks: it counts as 0."""
CAUSE_RATIO = 0.5
"""The part of a slowdown that something has to explain before the verdict names it (the same section)."""
_SHARED = {"forward-send": "forward-pp-comm", "forward-recv": "forward-pp-comm"} | {
    "backward-send": "backward-pp-comm", "backward-recv": "backward-pp-comm"
}  # fmt: skip
"""Both ends of a transfer are one kind for the reader."""
_COMMUNICATION = [kind in TRANSFERS or kind in COLLECTIVES for kind in OPERATIONS]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operation:
    rank: int
    dp_rank: int
    stage: int
    kind: str
    chunk: int
    model_chunk: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shape:
    """Steps with the same operations and dependencies. ``rows`` (steps x operations) are places in the table."""

    operations: tuple[_Operation, ...]
    order: tuple[tuple[Rows, Rows], ...]
    """(what they wait for, operations that start together), so that what is waited for comes first."""
    steps: tuple[int, ...]
    rows: Rows
    lengths_s: Floats
    """As recorded; of what communicates, from the latest start in its group."""


def replay_stragglers(table: OperationTable) -> StragglerReport:
    """Raises TraceError when no step can be replayed: its sends and receives do not match, or wait for each other."""
    shapes, left_out = _find_shapes(table)
    return _Replay(table, shapes, left_out).report()


class _Replay:
    def __init__(self, table: OperationTable, shapes: Sequence[_Shape], left_out: Sequence[int]) -> None:
        self._table, self._shapes, self._left_out = table, shapes, tuple(left_out)
        self._even_s = _even_lengths(shapes, table)
        count = sum(len(shape.steps) for shape in shapes)
        self._weights = [len(shape.steps) / count for shape in shapes]
        self._replayed = [_replay(shape.order, shape.lengths_s) for shape in shapes]
        self._even = [float(_replay(shape.order, self._evened(shape)[None])[0]) for shape in shapes]
        self._even_mean_s = sum(w * even for w, even in zip(self._weights, self._even, strict=True))
        self._replayed_mean_s = sum(w * times.mean() for w, times in zip(self._weights, self._replayed, strict=True))

    def report(self) -> StragglerReport:
        everything = {(one.dp_rank, one.stage): one.rank for shape in self._shapes for one in shape.operations}
        stages, dp_ranks = sorted({stage for _, stage in everything}), sorted({dp for dp, _ in everything})
        by_dp_rank = {dp: self._slowdown("dp_rank", {dp}) for dp in dp_ranks}
        by_stage = {stage: self._slowdown("stage", {stage}) for stage in stages}
        by_worker = sorted(
            (
                WorkerSlowdown(rank=rank, dp_rank=dp, stage=stage, slowdown_ratio=min(by_dp_rank[dp], by_stage[stage]))
                for (dp, stage), rank in everything.items()
            ),
            key=lambda one: (-one.slowdown_ratio, one.rank),
        )
        slowest = by_worker[: math.ceil(SLOWEST_RATIO * len(by_worker))]
        workers = {(one.dp_rank, one.stage) for one in slowest}
        slowdown = self._replayed_mean_s / self._even_mean_s
        by_operation = self._by_operation()
        workers_ratio = self._explained([[(o.dp_rank, o.stage) in workers for o in s.operations] for s in self._shapes])
        last_ratio = None
        if len(stages) > 1:
            last_ratio = self._explained([[o.stage == stages[-1] for o in s.operations] for s in self._shapes])
        recorded_s = self._recorded()
        steps = self._list_steps(recorded_s)
        recorded_mean_s = sum(recorded_s.values()) / len(recorded_s)
        lost_ratio = max(0.0, 1 - 1 / slowdown)
        return StragglerReport(
            tool_version=__version__,
            source=self._table.source,
            step_count=len(steps),
            left_out_steps=self._left_out,
            worker_count=len(everything),
            operation_count=sum(shape.rows.size for shape in self._shapes),
            recorded_ns=_ns(recorded_mean_s),
            replayed_ns=_ns(self._replayed_mean_s),
            even_ns=_ns(self._even_mean_s),
            slowdown_ratio=slowdown,
            launch_slowdown_ratio=recorded_mean_s / self._replayed_mean_s,
            by_operation=by_operation,
            by_dp_rank=_ranked({str(name): ratio for name, ratio in by_dp_rank.items()}),
            by_stage=_ranked({str(name): ratio for name, ratio in by_stage.items()}),
            by_worker=tuple(by_worker),
            slowest_workers=tuple(slowest),
            slowest_workers_ratio=workers_ratio,
            last_stage_ratio=last_ratio,
            steps=steps,
            verdict=_judge(lost_ratio, slowest, workers_ratio, last_ratio, stages[-1], by_operation),
            severity=severity_of(
                Saving(low_ratio=lost_ratio, mid_ratio=lost_ratio, high_ratio=lost_ratio, basis=Basis.SIMULATED)
            ),
        )

    def _evened(self, shape: _Shape) -> Floats:
        return np.array([self._even_s[one.kind] for one in shape.operations])

    def _mean_s(self, kept: Sequence[Sequence[bool]]) -> float:
        """The mean step when only the operations in ``kept`` (per shape) are as long as recorded."""
        means = (
            _replay(shape.order, np.where(keep, shape.lengths_s, self._evened(shape))).mean()
            for shape, keep in zip(self._shapes, kept, strict=True)
        )
        return float(sum(weight * mean for weight, mean in zip(self._weights, means, strict=True)))

    def _slowdown(self, field: str, values: set[int] | set[str]) -> float:
        kept = [[getattr(one, field) in values for one in shape.operations] for shape in self._shapes]
        return self._mean_s(kept) / self._even_mean_s

    def _by_operation(self) -> tuple[Slowdown, ...]:
        kinds = {one.kind for shape in self._shapes for one in shape.operations}
        together: dict[str, set[str]] = defaultdict(set)
        for kind in kinds:
            together[_SHARED.get(kind, kind)].add(kind)
        return _ranked({name: self._slowdown("kind", several) for name, several in together.items()})

    def _explained(self, chosen: Sequence[Sequence[bool]]) -> float | None:
        """The part of the slowdown that goes when the chosen operations are even."""
        lost_s = self._replayed_mean_s - self._even_mean_s
        if lost_s <= 1e-9 * self._even_mean_s:
            return None
        mended_s = self._mean_s([[not one for one in part] for part in chosen])
        return float((self._replayed_mean_s - mended_s) / lost_s)

    def _recorded(self) -> dict[int, float]:
        table = self._table
        recorded: dict[int, float] = {}
        for shape in self._shapes:
            starts = table.start_s[shape.rows]
            ends = starts + table.duration_s[shape.rows]
            recorded |= dict(zip(shape.steps, (ends.max(axis=1) - starts.min(axis=1)).tolist(), strict=True))
        return recorded

    def _list_steps(self, recorded_s: dict[int, float]) -> tuple[StepSlowdown, ...]:
        return tuple(
            sorted(
                (
                    StepSlowdown(
                        step=step,
                        recorded_ns=_ns(recorded_s[step]),
                        replayed_ns=_ns(replayed_s),
                        even_ns=_ns(even_s),
                        slowdown_ratio=replayed_s / even_s,
                    )
                    for shape, times, even_s in zip(self._shapes, self._replayed, self._even, strict=True)
                    for step, replayed_s in zip(shape.steps, times.tolist(), strict=True)
                ),
                key=lambda one: one.step,
            )
        )


def _judge(
    lost_ratio: float,
    slowest: Sequence[WorkerSlowdown],
    workers_ratio: float | None,
    last_ratio: float | None,
    last_stage: int,
    by_operation: Sequence[Slowdown],
) -> str:
    if lost_ratio < 0.01:
        return f"stragglers cost less than 1% of the step ({lost_ratio:.2%})"
    lost = f"stragglers cost {lost_ratio:.0%} of the step"
    if workers_ratio is not None and workers_ratio >= CAUSE_RATIO:
        names = ", ".join(f"data-parallel rank {one.dp_rank} stage {one.stage}" for one in slowest[:3])
        return f"{lost}; {min(1.0, workers_ratio):.0%} of that goes with {names}"
    if last_ratio is not None and last_ratio >= CAUSE_RATIO:
        return f"{lost}: the last stage ({last_stage}) computes longer than the others; give it fewer layers"
    return f"{lost}; no worker and no stage explains it; the most is in {by_operation[0].name}"


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _ranked(ratios: dict[str, float]) -> tuple[Slowdown, ...]:
    ordered = sorted(ratios.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Slowdown(name=name, slowdown_ratio=float(ratio)) for name, ratio in ordered)


def _even_lengths(shapes: Sequence[_Shape], table: OperationTable) -> dict[str, float]:
    """Seconds of each kind of operation without stragglers."""
    gathered: dict[str, list[Floats]] = defaultdict(list)
    for shape in shapes:
        kinds = np.array([OPERATIONS.index(one.kind) for one in shape.operations])
        for kind in np.unique(kinds):
            gathered[OPERATIONS[kind]].append(shape.lengths_s[:, kinds == kind].ravel())
    even = {}
    for name, parts in gathered.items():
        lengths = np.concatenate(parts)
        even[name] = float(np.median(lengths) if _COMMUNICATION[OPERATIONS.index(name)] else lengths.mean())
    return even


def _replay(order: Iterable[tuple[Rows, Rows]], lengths_s: Floats) -> Floats:
    """Seconds of each step (first axis) with these lengths (steps x operations)."""
    ends = np.zeros(lengths_s.shape[::-1])
    lengths = np.ascontiguousarray(lengths_s.T)
    for waited_for, members in order:
        start: Floats | float = ends[waited_for].max(axis=0) if len(waited_for) else 0.0
        ends[members] = start + lengths[members]
    longest: Floats = ends.max(axis=0)
    return longest


def _find_shapes(table: OperationTable) -> tuple[list[_Shape], list[int]]:
    """The steps by their structure, and those that have none that can be replayed."""
    by_structure: dict[bytes, list[tuple[int, Rows]]] = defaultdict(list)
    # Operations of a kind stand in the order of their starts; forwards and backwards, which share a device, together.
    line = np.where(np.isin(table.kind, (0, 1)), 0, table.kind)
    order = np.lexsort((table.start_s, line, table.stage, table.dp_rank, table.step))
    edges = np.flatnonzero(np.diff(table.step[order])) + 1
    for rows in np.split(order, edges):
        columns = (table.dp_rank, table.stage, table.kind, table.chunk, table.model_chunk, table.micro_batch)
        structure = b"".join(column[rows].tobytes() for column in columns)
        by_structure[structure].append((int(table.step[rows[0]]), rows))
    shapes: list[_Shape] = []
    left_out: list[int] = []
    reason = ""
    for members in by_structure.values():
        steps, rows = tuple(step for step, _ in members), np.array([rows for _, rows in members])
        try:
            shapes.append(_build_shape(table, steps, rows))
        except TraceError as error:
            left_out += steps
            reason = reason or str(error)
    if not shapes:
        raise TraceError(f"{table.source}: no step can be replayed: {reason}")
    return shapes, sorted(left_out)


def _build_shape(table: OperationTable, steps: tuple[int, ...], rows: Rows) -> _Shape:
    first = rows[0]
    operations = tuple(
        _Operation(
            rank=int(table.rank[row]),
            dp_rank=int(table.dp_rank[row]),
            stage=int(table.stage[row]),
            kind=OPERATIONS[table.kind[row]],
            chunk=int(table.chunk[row]),
            model_chunk=int(table.model_chunk[row]),
            micro_batch=int(table.micro_batch[row]),
        )
        for row in first
    )
    starts = table.start_s[rows]
    ends = starts + table.duration_s[rows]
    waits, groups = _Dependencies(operations, starts, ends).find()
    lengths = table.duration_s[rows].copy()
    for group in groups:
        lengths[:, group] = ends[:, group] - starts[:, group].max(axis=1, keepdims=True)
    lengths[lengths <= -CLOCK_ERROR_S] = 0.0
    return _Shape(
        operations=operations,
        order=tuple(_sort_groups(len(operations), waits, groups)),
        steps=steps,
        rows=rows,
        lengths_s=lengths,
    )


class _Dependencies:
    """What every operation of a step waits for, and which start together. ``starts``, ``ends``: steps x operations."""

    def __init__(self, operations: Sequence[_Operation], starts: Floats, ends: Floats) -> None:
        self._operations, self._starts, self._ends = operations, starts, ends
        self._waits: list[list[int]] = [[] for _ in operations]
        self._ends_of: dict[tuple[int, str, int, int], list[int]] = defaultdict(list)
        self._last_chunk = max((one.model_chunk for one in operations if one.kind == FORWARD), default=0)
        self._communicates = any(one.kind in TRANSFERS for one in operations)

    def find(self) -> tuple[list[list[int]], list[list[int]]]:
        workers: dict[tuple[int, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        computes: dict[tuple[int, int], list[int]] = defaultdict(list)
        for at, one in enumerate(self._operations):
            workers[one.dp_rank, one.stage][one.kind].append(at)
            if one.kind in (FORWARD, BACKWARD):
                computes[one.dp_rank, one.stage].append(at)
        for worker, by_kind in workers.items():
            if not computes[worker]:
                raise TraceError(f"data-parallel rank {worker[0]} stage {worker[1]} computes nothing")
            self._order_worker(by_kind, computes[worker])
        groups = [*self._ends_of.values(), *self._list_collectives()]
        alone = [group for group in self._ends_of.values() if len(group) != 2]
        if alone:
            one = self._operations[alone[0][0]]
            raise TraceError(
                f"a {one.kind} of data-parallel rank {one.dp_rank} stage {one.stage} has {len(alone[0]) - 1} partners"
            )
        return self._waits, groups

    def _order_worker(self, by_kind: dict[str, list[int]], computes: list[int]) -> None:
        self._chain(computes)
        for kind in TRANSFERS:
            self._chain(by_kind.get(kind, []))
        gathers, scatters = by_kind.get("params-all-gather", []), by_kind.get("grads-reduce-scatter", [])
        self._chain([*gathers, *scatters])
        for gather in gathers:
            self._waits[self._computes_of(gather, computes)[0]].append(gather)
        for kind in TRANSFERS:
            self._match(kind, by_kind.get(kind, []), by_kind[FORWARD if kind.startswith("forward") else BACKWARD])
        first_backward = next((at for at, one in enumerate(computes) if self._operations[one].kind == BACKWARD), 0)
        if first_backward > 1 and by_kind.get("backward-recv"):
            self._waits[by_kind["backward-recv"][0]].append(computes[first_backward - 2])
        overlaps = bool(by_kind.get("separate-grads-all-reduce"))
        before = [computes[-1]]
        for kind in AFTER_BACKWARD:
            members = by_kind.get(kind, [])
            if overlaps and kind == "grads-reduce-scatter":
                for scatter in members:
                    self._waits[scatter].append(self._computes_of(scatter, computes)[-1])
                continue
            if overlaps and kind == "layernorm-grads-all-reduce":
                before = [*before, *scatters[-1:]]
            for at in members:
                self._waits[at] += before
            before = members or before

    def _computes_of(self, at: int, computes: list[int]) -> list[int]:
        """The computations of an operation's model chunk."""
        chunk = self._operations[at].chunk
        return [one for one in computes if self._operations[one].chunk == chunk] or computes

    def _chain(self, members: Sequence[int]) -> None:
        for earlier, later in pairwise(members):
            self._waits[later].append(earlier)

    def _match(self, kind: str, transfers: Sequence[int], computes: Sequence[int]) -> None:
        """The n-th transfer belongs to the n-th computation of its direction; its partner is known by chunk and batch.

        With interleaved stages a profiler may record a transfer for every computation, also for those at the model's
        ends, which have no partner: they wait for nobody else. It may miss the first receive, or record some outside.
        """
        direction, _, side = kind.partition("-")
        towards = (1 if direction == "forward" else -1) * (1 if side == "send" else -1)
        chunks = range(self._last_chunk + 1)
        needing = [at for at in computes if self._operations[at].model_chunk + towards in chunks]
        starts, ends = self._starts[0], self._ends[0]
        if side == "recv":
            inside = [at for at in transfers if starts[at] <= max((starts[one] for one in computes), default=0.0)]
        else:
            inside = [at for at in transfers if ends[at] >= min((ends[one] for one in computes), default=0.0)]
        for matched in (computes, needing, computes[1:] if side == "recv" else needing):
            if len(matched) == len(inside):
                break
        else:
            if not transfers and not self._communicates:
                return  # one stage, or a profiler that recorded no transfers at all
            one = self._operations[(transfers or computes)[0]]
            raise TraceError(
                f"data-parallel rank {one.dp_rank} stage {one.stage} has {len(inside)} {kind} for {len(needing)} "
                "computations"
            )
        for transfer, compute in zip(inside, matched, strict=True):
            if side == "send":
                self._waits[transfer].append(compute)
            else:
                self._waits[compute].append(transfer)
                place = computes.index(compute)  # a receive is posted after the computation before its own
                self._waits[transfer] += computes[place - 1 : place] if place else []
            one = self._operations[compute]
            if one.model_chunk + towards in chunks:
                end = one.model_chunk + (towards if side == "send" else 0)
                self._ends_of[one.dp_rank, direction, end, one.micro_batch].append(transfer)

    def _list_collectives(self) -> list[list[int]]:
        """Data-parallel ones join the ranks of a stage, embeddings the stages of a rank, and clipping everybody.

        A layer norm's gradients are reduced over tensor-parallel ranks, of which the table holds one: it joins nobody.
        """
        joined: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        seen: dict[tuple[str, int, int], int] = defaultdict(int)
        for at, one in enumerate(self._operations):
            if one.kind not in COLLECTIVES:
                continue
            own = (one.kind, one.dp_rank, one.stage)
            turn = seen[own]
            seen[own] += 1
            if one.kind in ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"):
                joined[one.kind, one.stage, turn].append(at)
            elif one.kind == "embedding-grads-all-reduce":
                joined[one.kind, one.dp_rank, turn].append(at)
            elif one.kind == "optimizer-clip-main-grad":
                joined[one.kind, 0, turn].append(at)
        return list(joined.values())


def _sort_groups(count: int, waits: Sequence[Sequence[int]], groups: Sequence[list[int]]) -> list[tuple[Rows, Rows]]:
    """Operations that start together, each after what it waits for. Raises TraceError where that is impossible."""
    member_of = list(range(count))
    members = {at: [at] for at in range(count)}
    for group in groups:
        for at in group[1:]:
            member_of[at] = group[0]
            del members[at]
        members[group[0]] = list(group)
    waited_for = {one: sorted({before for at in group for before in waits[at]}) for one, group in members.items()}
    followers: dict[int, set[int]] = defaultdict(set)
    open_count: dict[int, int] = {}
    for one, befores in waited_for.items():
        needed = {member_of[before] for before in befores}
        open_count[one] = len(needed)
        for before in needed:
            followers[before].add(one)
    ready = [one for one, needed in open_count.items() if not needed]
    ordered = []
    while ready:
        one = ready.pop()
        ordered.append((np.array(waited_for[one], dtype=np.int64), np.array(members[one], dtype=np.int64)))
        for follower in followers[one]:
            open_count[follower] -= 1
            if not open_count[follower]:
                ready.append(follower)
    if len(ordered) != len(members):
        raise TraceError(f"{len(members) - len(ordered)} operations wait for each other")
    return ordered
