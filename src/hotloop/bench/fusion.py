"""A step's recorded calls and a probe of their operators -> what a compiler that merges them would take.

The calls of forward and backward are put into passes as torch's compiler does it: an operator joins the pass of its
neighbours unless it needs what a matrix product, a convolution or another foreign operator made in between. A pass then
costs its operators' computing in the caches, over the threads, beside one read of what comes from outside of it and one
write of what leaves it, at the speed of copies over that distance. What backward needs of a forward pass is either kept
or computed again from the pass's inputs, whichever is fewer bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotloop.core.operators import COMPILED_RATIO, RANDOM, RANDOM_RATIO, REDUCED_THEN_USED, bare_name, is_fusable

PASS_NS = 8_000.0
"""Calling one compiled pass and making its result's memory, in a step that leaves the caches cold.

As the four below a rule of thumb, without raw data: what was held against compiled models is the forecast as a whole
(docs/compile-forecast.md)."""
THREADS_RATIO = 0.9
"""What another thread adds to the first, in computing."""
ELEMENTS_PER_THREAD = 512
"""A compiled pass is shared out over threads from so many elements each."""
LEAST_REGISTER_RATIO = 0.25
"""Part of a simple operator's time in the cache that is left of it in registers: loads and stores are most of it."""
STEP_OVER_REPLAY_RATIO = 1.6
"""A call in a step finds cold caches and fresh memory; what took longer than this over its replay was disturbed."""
STEP_OVER_REPLAY_NS = 10_000.0
LEAST_CALLS_RATIO, MOST_CALLS_RATIO, MOST_WORK_RATIO = 0.5, 2.0, 1.3
"""Range factors of a pass: its calls at the least and the most, and its work at the most. The forecast as a whole was
held against compiled models (docs/compile-forecast.md, 2026-11-23): 15 of 15 saved at least the low end, less 0.02."""
OVERLAP_RATIO = 0.3
"""Part of the shorter of computing and moving data that is not hidden behind the longer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """Times per step in ns of the calls that a compiler merges, as they are and merged; and of those it leaves."""

    eager_ns: float
    likely_ns: float
    least_ns: float
    most_ns: float
    starting_ns: float
    """Part of ``eager_ns`` that merged calls cost however little they compute."""
    kept_ns: float
    """Calls that stay as they are, such as matrix products."""
    convolutions_ns: float
    """What the memory format that the compiler chooses takes off convolutions."""
    outside_ns: float
    """Calls in backward that belong to what is not compiled, such as the loss."""
    calls_count: int
    """Calls of forward and backward that are compiled, merged or kept."""
    kept_count: int
    passes_count: int
    recomputed_count: int
    timed_ratio: float
    """Share of the merged calls' time whose computing was measured."""


@dataclass(slots=True, eq=False)
class _Pass:
    number: int
    backward: bool
    first_call: int
    calls: list[int] = field(default_factory=list)
    eager_ns: float = 0.0
    starting_ns: float = 0.0
    compute_ns: float = 0.0
    random_ns: float = 0.0
    """Drawing random numbers, in torch's own code."""
    elements: float = 0.0
    reads: dict[int, int] = field(default_factory=dict)
    """Buffers from outside, with the call that reads them first."""
    writes: set[int] = field(default_factory=set)
    """Buffers that leave it."""
    again: set[int] = field(default_factory=set)
    """Buffers from outside that it has to read twice."""


def read_flow(fact: Mapping[str, Any] | None) -> tuple[list[tuple[int, list[int], list[int]]], list[int]] | None:
    """Calls as (operator, buffers read, buffers written), and the buffers' bytes; None where it holds no such thing."""
    if not isinstance(fact, Mapping):
        return None
    calls, sizes = fact.get("calls"), fact.get("bytes")
    if not isinstance(calls, list) or not isinstance(sizes, list) or not calls:
        return None
    if not all(isinstance(one, int) and 0 <= one < 1 << 50 for one in sizes):
        return None
    found = []
    for call in calls:
        if not (isinstance(call, list) and len(call) == 3 and isinstance(call[0], int)):
            return None
        if not all(isinstance(part, list) and all(_is_buffer(one, sizes) for one in part) for part in call[1:]):
            return None
        found.append((call[0], call[1], call[2]))
    return found, sizes


def _is_buffer(value: object, sizes: Sequence[int]) -> bool:
    return isinstance(value, int) and 0 <= value < len(sizes)


def estimate_fused(
    ops: Sequence[Mapping[str, Any]], flow: Mapping[str, Any] | None, measured: Mapping[str, Any]
) -> Fused | None:
    """What the recorded operators ``ops`` would take when merged; None where the calls' order or data is unknown."""
    known = read_flow(flow)
    if known is None:
        return None
    calls, sizes = known
    if not any(not op.get("outside", True) and not op["backward"] for op in ops):
        return None  # no module was seen to be called: there is no model to compile
    merger = _Merger(ops, sizes, measured)
    for at, (first, reads, writes) in enumerate(calls):
        merger.add(at, first, reads, writes)

    passes = merger.passes
    recomputed = _place_writes(passes, merger.made_by, merger.read_by, merger.read_outside, sizes)
    eager_ns = sum(one.eager_ns for one in passes)
    written_at = {buffer: at for at, (_, _, writes) in enumerate(calls) for buffer in writes}
    speed = _Speed(measured["streams_ns_per_byte"], merger.moved_bytes, written_at, sizes)
    threads = max(1, int(measured["threads"]))
    costs = [_cost_ns(one, speed, threads) for one in passes]
    # Only random numbers are known to be slower when compiled: anything else above the present time is the estimate's.
    likely = [
        cost.likely if one.random_ns else min(cost.likely, one.eager_ns)
        for one, cost in zip(passes, costs, strict=True)
    ]
    return Fused(
        eager_ns=eager_ns,
        likely_ns=sum(likely),
        least_ns=sum(min(cost.least, one.eager_ns) for one, cost in zip(passes, costs, strict=True)),
        most_ns=sum(cost.most for cost in costs),
        starting_ns=sum(one.starting_ns for one in passes),
        kept_ns=merger.kept_ns,
        convolutions_ns=merger.convolutions_ns,
        outside_ns=merger.outside_ns,
        calls_count=merger.kept_count + sum(len(one.calls) for one in passes),
        kept_count=merger.kept_count,
        passes_count=len(passes),
        recomputed_count=recomputed,
        timed_ratio=merger.timed_ns / eager_ns if eager_ns > 0 else 0.0,
    )


class _Merger:
    """Puts the calls of a step, in their order, into passes; counts what is kept as it is, and what is not compiled."""

    def __init__(self, ops: Sequence[Mapping[str, Any]], sizes: Sequence[int], measured: Mapping[str, Any]) -> None:
        self._ops = ops
        self._sizes = sizes
        self._by_first = {op["first"]: index for index, op in enumerate(ops) if isinstance(op.get("first"), int)}
        self._replays = {int(one["index"]): one for one in measured["chunks"]}
        self._chunks = {index: one for index, one in self._replays.items() if "chunk_ns" in one}
        self._formats = {
            int(one["index"]): max(0.0, 1.0 - float(one["channels_last_ns"]) / max(1.0, float(one["contiguous_ns"])))
            for one in measured.get("convolutions") or ()
        }
        self._copy_ns = _slope_ns(measured["copy_in_cache"]) or 0.0
        self._each_ns = [float(op["cpu_ns"]) / max(1, op["count"]) for op in ops]
        self._current: dict[bool, _Pass] = {}
        self.passes: list[_Pass] = []
        self.made_by: dict[int, tuple[str, int]] = {}
        """Buffer -> ("pass" | "kept" | "outside", its number or call)."""
        self.read_by: dict[int, set[int]] = {}
        self.read_outside: set[int] = set()
        self.moved_bytes = [0]
        self.kept_ns = self.convolutions_ns = self.outside_ns = self.timed_ns = 0.0
        self.kept_count = 0

    def add(self, at: int, first: int, reads: Sequence[int], writes: Sequence[int]) -> None:
        """The call number ``at``, of the operator that was first called as number ``first``."""
        self.moved_bytes.append(self.moved_bytes[-1] + sum(self._sizes[one] for one in writes))
        index = self._by_first.get(first)
        op: Mapping[str, Any] = self._ops[index] if index is not None else {"name": "", "backward": False}
        backward = bool(op["backward"])
        is_outside = bool(op.get("outside"))
        if backward:
            # The backward of what is done with the model's output, such as the loss, starts from what that made.
            is_outside = any(self.made_by.get(one, ("", 0))[0] == "outside" for one in reads)
        ns = _call_ns(self._each_ns[index], self._replays.get(index)) if index is not None else 0.0
        if is_outside:
            self.outside_ns += ns if backward else 0.0
            self.read_outside.update(reads)
            self.made_by.update((one, ("outside" if not backward else "kept", at)) for one in writes)
        elif index is None or not is_fusable(str(op["name"])):
            self.kept_ns += ns
            self.convolutions_ns += ns * self._formats.get(index, 0.0) if index is not None else 0.0
            self.kept_count += 1
            self.read_outside.update(reads)
            self.made_by.update((one, ("kept", at)) for one in writes)
        else:
            self._merge(at, index, ns, reads, writes)

    def _merge(self, at: int, index: int, ns: float, reads: Sequence[int], writes: Sequence[int]) -> None:
        """The call joins the current pass, or begins one where something foreign comes between."""
        op, chunk = self._ops[index], self._chunks.get(index)
        backward, name = bool(op["backward"]), bare_name(str(op["name"]))
        one = self._current.get(backward)
        if one is None or any(_comes_between(self.made_by.get(buffer), one) for buffer in reads):
            one = self._current[backward] = _Pass(number=len(self.passes), backward=backward, first_call=at)
            self.passes.append(one)
        one.calls.append(at)
        one.eager_ns += ns
        one.starting_ns += min(ns, float(chunk["least_ns"])) if chunk is not None else 0.0
        compute_ns, elements = _compute_ns(op, chunk, self._copy_ns, sum(self._sizes[b] for b in writes))
        self.timed_ns += ns if chunk is not None else 0.0
        if name in RANDOM:
            one.random_ns += compute_ns
        else:
            one.compute_ns += compute_ns * COMPILED_RATIO.get(name, 1.0)
        one.elements = max(one.elements, elements)
        for buffer in reads:
            if self.made_by.get(buffer) == ("pass", one.number):
                self.read_by.setdefault(buffer, set())
            else:
                one.reads.setdefault(buffer, at)
                self.read_by.setdefault(buffer, set()).add(one.number)
                if name in REDUCED_THEN_USED:
                    one.again.add(buffer)
        self.made_by.update((buffer, ("pass", one.number)) for buffer in writes)


def _comes_between(maker: tuple[str, int] | None, one: _Pass) -> bool:
    """Whether a pass that has begun cannot hold a call that needs this: it is made by a foreign call in between."""
    return maker is not None and maker[0] != "pass" and maker[1] > one.first_call


def _call_ns(recorded_ns: float, chunk: Mapping[str, Any] | None) -> float:
    """What a call took in the step: as recorded once, unless its replay says that it was disturbed then."""
    whole_ns = chunk.get("whole_ns") if chunk is not None else None
    if not whole_ns:
        return recorded_ns
    return min(recorded_ns, STEP_OVER_REPLAY_RATIO * float(whole_ns) + STEP_OVER_REPLAY_NS)


def _slope_ns(chunk: Mapping[str, Any]) -> float | None:
    """ns per element beyond the call; None where both parts were the same."""
    more = float(chunk["chunk_elements"]) - float(chunk["least_elements"])
    if more <= 0:
        return None
    return max(0.0, float(chunk["chunk_ns"]) - float(chunk["least_ns"])) / more


def _compute_ns(
    op: Mapping[str, Any], chunk: Mapping[str, Any] | None, copy_ns: float, written_bytes: int
) -> tuple[float, float]:
    """One call's computing on one thread in registers, and its elements; that of a copy where it was not measured."""
    elements = float(chunk["elements"]) if chunk is not None else written_bytes / 4
    slope = _slope_ns(chunk) if chunk is not None else None
    if slope is None:
        slope = copy_ns
    return elements * max(LEAST_REGISTER_RATIO * min(slope, copy_ns), slope - copy_ns), elements


def _place_writes(
    passes: Sequence[_Pass],
    made_by: Mapping[int, tuple[str, int]],
    read_by: Mapping[int, set[int]],
    read_outside: set[int],
    sizes: Sequence[int],
) -> int:
    """Decide what leaves each pass, and what backward computes again instead; answers how many passes that touches."""
    recomputed: set[int] = set()
    made: dict[int, list[int]] = {}
    for buffer, (kind, number) in made_by.items():
        if kind == "pass":
            made.setdefault(number, []).append(buffer)
    for number, one in enumerate(passes):
        for_backward: dict[int, list[int]] = {}
        for buffer in made.get(number, ()):
            # What no recorded call reads is a result: a gradient, or what the model answers.
            if buffer in read_outside or buffer not in read_by:
                one.writes.add(buffer)
            for reader in read_by.get(buffer, ()):
                if one.backward or not passes[reader].backward:
                    one.writes.add(buffer)
                else:
                    for_backward.setdefault(reader, []).append(buffer)
        for reader, saved in for_backward.items():
            later = passes[reader]
            inputs = [buffer for buffer in one.reads if buffer not in later.reads]
            not_written = [buffer for buffer in saved if buffer not in one.writes]
            if sum(sizes[b] for b in not_written) > sum(sizes[b] for b in inputs):
                at = min(later.reads[buffer] for buffer in saved)
                for buffer in not_written:
                    del later.reads[buffer]
                later.reads.update((buffer, at) for buffer in inputs)
                later.compute_ns += one.compute_ns
                recomputed.add(number)
            else:
                one.writes.update(saved)
    return len(recomputed)


@dataclass(frozen=True, slots=True)
class _Speed:
    streams: Sequence[Sequence[float]]
    moved_bytes: Sequence[int]
    """Bytes written before each call."""
    written_at: Mapping[int, int]
    sizes: Sequence[int]

    def read_ns(self, buffer: int, at: int) -> float:
        """Reading a buffer at a call, from as far away as what was written since it was made."""
        # What the step did not make, such as parameters, was last used in another step.
        made_at = self.written_at.get(buffer)
        begin = self.moved_bytes[made_at] if made_at is not None and made_at <= at else 0
        distance = self.moved_bytes[at + 1] - begin if begin or made_at == 0 else self.moved_bytes[-1]
        return self.sizes[buffer] * self._ns_per_byte(max(distance, 2 * self.sizes[buffer]))

    def write_ns(self, buffer: int) -> float:
        return self.sizes[buffer] * self._ns_per_byte(2 * self.sizes[buffer])

    def _ns_per_byte(self, distance_bytes: float) -> float:
        """Between the two measured distances around it, by the logarithm."""
        before: Sequence[float] | None = None
        for after in self.streams:
            if distance_bytes <= after[0]:
                if before is None:
                    return float(after[1])
                part = math.log(distance_bytes / before[0]) / math.log(after[0] / before[0])
                return float(before[1] + part * (after[1] - before[1]))
            before = after
        return float(before[1]) if before is not None else 0.0


@dataclass(frozen=True, slots=True)
class _Cost:
    least: float
    likely: float
    most: float


def _cost_ns(one: _Pass, speed: _Speed, threads: int) -> _Cost:
    read_ns = sum(speed.read_ns(b, at) for b, at in one.reads.items()) + sum(
        speed.read_ns(b, one.reads[b]) for b in one.again if b in one.reads
    )
    moving_ns = read_ns + sum(speed.write_ns(b) for b in one.writes)
    used = min(threads, max(1.0, one.elements / ELEMENTS_PER_THREAD))
    shared_by = 1.0 + (used - 1.0) * THREADS_RATIO
    computing_ns = [(one.compute_ns + ratio * one.random_ns) / shared_by for ratio in RANDOM_RATIO]
    calls_ns = PASS_NS * max(1, len({speed.sizes[b] for b in one.writes}))
    return _Cost(
        least=max(moving_ns, computing_ns[0]) + LEAST_CALLS_RATIO * calls_ns,
        likely=_together_ns(moving_ns, computing_ns[1]) + calls_ns,
        most=MOST_WORK_RATIO * (moving_ns + computing_ns[2]) + MOST_CALLS_RATIO * calls_ns,
    )


def _together_ns(one_ns: float, other_ns: float) -> float:
    return max(one_ns, other_ns) + OVERLAP_RATIO * min(one_ns, other_ns)
