"""Trace -> StepGraph: what had to end before what could begin, in a window of consecutive steps of one rank.

A node is an instant: where something on a host thread begins or ends, and where a piece of device work begins and ends.
An edge says that its target comes at least ``weight_ns`` after its source. Nothing else moves a node, so replaying the
graph with other weights re-times the steps (what_if), and tracing back along the edges that hold finds what the step
waited for (critical_path).

    thread         one node after the other; the weight is the time that it took. A call that waits for the device
                   weighs only what it took after the device was done.
    launch         start of the launching call -> start of the work
    stream         end of the work -> start of the next work on the stream
    stream wait    last work before the recorded event -> first work after the wait
    host wait      last work of the stream, event or device -> end of the call that waits for it
    full queue     start of the work that made room -> end of the launching call that found no room
    full device    work that fills the device -> start of a kernel on another stream that found no room next to it
    pass           the main thread waits while a backward thread works: -> its first operator, its last ->

If the recording lacks the waits (no cuda_sync events), targets are inferred from times, and counted as such. Anything
that no edge explains within JITTER_NS stays unexplained: it is reported, not made up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.core.trace import Category, Trace

from .classes import COMM, COMPUTE, Classes
from .idle import SYNC_CALL
from .intervals import Int64s
from .links import NONE, Links, Nesting, find_categories, match_names, nest_rows, split_by_thread
from .step_graph import KIND, ROLE, ROLES, StepGraph, order_edges
from .steps import LOADER_NEXT, StepWindows

Bools = NDArray[np.bool_]
Int8s = NDArray[np.int8]

_KIND_OF_ROLE = {
    "host": "host", "input": "input", "call": "launch", "sync_call": "sync", "latency": "launch", "gap": "launch",
    "host_wait": "sync", "stream_wait": "sync", "fork": "host", "join": "host", "anchor": "host",
    "idle": "sync",
}  # fmt: skip
_KIND_BY_ROLE = np.array([KIND[_KIND_OF_ROLE.get(name, "host")] for name in ROLES], dtype=np.int8)

JITTER_NS = 20_000
"""Delays up to this are usual between cause and effect; longer ones need a cause of their own."""
DEFAULT_LATENCY_NS = 3_000
CALL_TAIL_NS = 10_000
"""The longest duration of a call that waits for nothing."""
INFERRED_WAIT_NS = 50_000
"""Work that waited for another stream begins within this after that stream's work ended."""
FULL_DEVICE_NS = 200_000
"""Work that found no room next to another stream's begins at most this before the last blocks of that work end."""
QUEUE_COUNT = 1000
"""Launched and not yet begun: from about this number on, CUDA makes the launching call wait."""
MAX_GRAPH_ROWS = 400_000

_MOVING_CALL = re.compile(r"Launch|Memcpy|Memset|MemPrefetch", re.IGNORECASE)
_EVENT_RECORD = re.compile(r"EventRecord")
_HOST_COMM = re.compile(r"^(?:gloo|mpi|ucc):")
_DEVICE_WIDE = re.compile(r"(?:Device|Ctx)Synchronize")


class _Edges:
    """The columns of all edges so far."""

    def __init__(self) -> None:
        self.parts: list[Int64s] = []

    def add(
        self,
        source: Int64s | Sequence[int],
        target: Int64s | Sequence[int],
        weight: Int64s | Sequence[int],
        role: str | Int8s,
        kind: Int8s | None = None,
        row: Int64s | Sequence[int] | None = None,
        *,
        inferred: bool = False,
    ) -> None:
        roles = np.full(len(source), ROLE[role], dtype=np.int8) if isinstance(role, str) else role
        kinds = _KIND_BY_ROLE[roles] if kind is None else kind
        rows = np.full(len(source), NONE, dtype=np.int64) if row is None else row
        guessed = np.full(len(source), inferred)
        self.parts.append(np.array([source, target, weight, roles, kinds, rows, guessed], dtype=np.int64))


@dataclass(slots=True)
class _Thread:
    """The nodes of one host thread and what was open between them."""

    thread: int
    time_ns: Int64s
    node: Int64s
    place: Int64s
    """Innermost range of ``_Builder.host`` in each segment; -1 without."""
    weight: Int64s
    role: Int8s
    row: Int64s

    def node_at(self, time_ns: int) -> int:
        """Node of an instant that is one of the thread's."""
        return int(self.node[np.searchsorted(self.time_ns, time_ns)])


@dataclass(frozen=True, slots=True)
class _Queue:
    """The launches into a stream, or by a thread, in the order of the calls."""

    called_ns: Int64s
    work: Int64s

    def last_until(self, time_ns: int) -> int:
        """The last work that was called until then; NONE if there is none."""
        at = int(np.searchsorted(self.called_ns, time_ns, side="right")) - 1
        return int(self.work[at]) if at >= 0 else NONE


def build_graph(trace: Trace, links: Links, classes: Classes, steps: StepWindows, first: int, last: int) -> StepGraph:
    """The graph of the steps at positions ``first`` to ``last``, both included."""
    return _Builder(trace, links, classes, steps, first, last).build()


def count_rows(trace: Trace, steps: StepWindows, first: int, last: int) -> int:
    """Rows that begin in the window: the cost of its graph."""
    low, high = np.searchsorted(trace.start_ns, [int(steps.start_ns[first]), int(steps.end_ns[last])])
    return int(high - low)


class _Builder:
    def __init__(self, trace: Trace, links: Links, classes: Classes, steps: StepWindows, first: int, last: int) -> None:
        self.trace, self.links, self.classes, self.steps = trace, links, classes, steps
        self.first, self.last = first, last
        self.low, self.high = int(steps.start_ns[first]), int(steps.end_ns[last])
        self.nodes: list[Int64s] = []
        self.edges = _Edges()
        self.threads: dict[int, _Thread] = {}

    def build(self) -> StepGraph:
        self._lay_threads()
        self._lay_work()
        self._link_streams()
        self._link_host_waits()
        self._link_launches()
        self._link_full_queues()
        self._link_passes()
        self._close_threads()
        return self._finish()

    def _add_nodes(self, time_ns: Int64s) -> Int64s:
        """Numbers of new nodes at these instants."""
        count = sum(map(len, self.nodes))
        self.nodes.append(time_ns)
        return np.arange(count, count + len(time_ns), dtype=np.int64)

    # ---- host threads

    def _lay_threads(self) -> None:
        trace = self.trace
        rows = find_categories(trace, (Category.CPU_OP, Category.ANNOTATION, Category.RUNTIME))
        low, high = np.searchsorted(trace.start_ns[rows], [self.low, self.high])
        rows = rows[low:high]
        self.host: Nesting = nest_rows(trace, rows)
        name = trace.name[self.host.rows]
        category = trace.category[self.host.rows]
        is_call = category == Category.RUNTIME
        self.is_sync = is_call & match_names(trace, name, SYNC_CALL)
        is_moving = is_call & match_names(trace, name, _MOVING_CALL) & ~self.is_sync
        inside_loader = self.host.find_nearest(match_names(trace, name, LOADER_NEXT)) >= 0
        role = np.where(
            self.is_sync,
            ROLE["sync_call"],
            np.where(inside_loader, ROLE["input"], np.where(is_moving, ROLE["call"], ROLE["host"])),
        ).astype(np.int8)
        self.is_soft = category == Category.ANNOTATION
        self.main = self.steps.main_thread if self.steps.main_thread is not None else NONE
        for thread in sorted({*self.host.bounds, self.main}, key=lambda t: (t != self.main, t)):
            a, b = self.host.bounds.get(thread, (0, 0))
            edges = [self.host.start_ns[a:b], np.minimum(self.host.end_ns[a:b], self.high)]
            if thread == self.main:
                chosen = slice(self.first, self.last + 1)
                edges += [self.steps.start_ns[chosen], self.steps.end_ns[chosen]]
            time = np.unique(np.concatenate(edges))
            node = self._add_nodes(time)
            place = self.host.find_innermost(np.full(len(time) - 1, thread, dtype=np.int32), time[:-1])
            # A position of -1 takes the entry after the last range.
            segment_role = np.append(role, np.int8(ROLE["host"]))[place]
            row = np.append(self.host.rows, NONE)[place]
            self.threads[thread] = _Thread(thread, time, node, place, np.diff(time), segment_role, row)

    def _close_threads(self) -> None:
        for thread in self.threads.values():
            self.edges.add(thread.node[:-1], thread.node[1:], thread.weight, thread.role, row=thread.row)

    # ---- device work

    def _lay_work(self) -> None:
        links, trace = self.links, self.trace
        call = links.launch_row
        called = np.where(call >= 0, trace.start_ns[np.maximum(call, 0)], links.start_ns)
        inside = (called >= self.low) & (called < self.high)
        carried = (called < self.low) & (links.end_ns > self.low)
        self.work = np.flatnonzero(inside | carried)
        work = self.work
        self.called = called[work]
        self.start, self.end = links.start_ns[work], links.end_ns[work]
        self.carried = carried[work]
        self.known = (call[work] >= 0) & ~self.carried
        self.stream = trace.stream[links.device_rows[work]].astype(np.int64)
        both = self._add_nodes(np.stack([self.start, self.end], axis=1).reshape(-1))
        self.begin_node, self.end_node = both[0::2], both[1::2]
        kind = np.where(
            self.classes.kind[work] == COMM,
            KIND["comm"],
            np.where(self.classes.kind[work] == COMPUTE, KIND["device_compute"], KIND["memcpy"]),
        ).astype(np.int8)
        rows = self.links.device_rows[work]
        self.edges.add(self.begin_node, self.end_node, self.end - self.start, "work", kind, rows)
        # In the order of each stream; work that the trace draws over the previous work only keeps its order.
        order = np.lexsort((self.end, self.start, self.stream))
        after, before = order[1:], order[:-1]
        same = self.stream[after] == self.stream[before]
        self.previous = np.full(len(work), NONE, dtype=np.int64)
        self.previous[after[same]] = before[same]

    def _measure_latencies(self) -> tuple[int, int]:
        """(usual way from a call to its work on an idle stream, usual gap between queued work), ns."""
        previous = np.maximum(self.previous, 0)
        has = self.previous >= 0
        prior_end = np.where(has, self.end[previous], np.iinfo(np.int64).min // 4)
        delay = self.start - self.called
        idle = self.known & (prior_end <= self.called) & (delay >= 0)
        latency = int(np.sort(delay[idle])[np.count_nonzero(idle) // 10]) if idle.any() else DEFAULT_LATENCY_NS
        gap = self.start - prior_end
        queued = self.known & has & (gap >= 0) & (self.called + latency <= prior_end) & (gap <= JITTER_NS)
        usual = int(np.sort(gap[queued])[np.count_nonzero(queued) // 2]) if queued.any() else 0
        return min(latency, JITTER_NS), usual

    def _link_launches(self) -> None:
        """Launches, streams and stream waits of every work, with the weight that explains its start."""
        size = len(self.work)
        if size == 0:
            return
        latency, usual_gap = self._measure_latencies()
        far = np.iinfo(np.int64).min // 4
        previous = np.maximum(self.previous, 0)
        has = self.previous >= 0
        overlapping = has & (self.end[previous] > self.start)
        chained = has & ~overlapping
        # Weights that are feasible (never later than measured); then the edge that binds takes the missing time.
        prior_end = np.where(chained, self.end[previous], far)
        gap = np.where(chained, np.minimum(usual_gap, self.start - prior_end), 0)
        launchable = self.known & (self.called <= self.start)
        way = np.where(launchable, np.minimum(latency, self.start - self.called), 0)
        ready_launch = np.where(launchable, self.called + way, far)
        ready_stream = np.where(chained, prior_end + gap, far)
        waits = [(s, t, min(usual_gap, int(self.start[t] - self.end[s])), False) for s, t in self.stream_waits]
        ready_wait = np.full(size, far, dtype=np.int64)
        for s, t, weight, _ in waits:
            ready_wait[t] = max(int(ready_wait[t]), int(self.end[s]) + weight)
        ready = np.maximum(np.maximum(ready_launch, ready_stream), ready_wait)
        explained = ready > far // 2
        missing = np.where(explained, self.start - ready, 0)
        # A long call did something else first: its work cannot have been queued later than at its end.
        call = np.maximum(self.links.launch_row[self.work], 0)
        lasted = np.where(launchable, self.trace.duration_ns[call], 0)
        slow_call = launchable & (missing > JITTER_NS) & (self.called + lasted + latency + JITTER_NS >= self.start)
        found = self._infer_stream_waits(np.flatnonzero(explained & (missing > JITTER_NS) & ~slow_call))
        for t, s in found.items():
            if self.end[s] <= self.start[t]:
                waits.append((s, t, int(self.start[t] - self.end[s]), True))
            else:
                # The other work's last blocks made room: it counts up to there.
                kind = np.array([KIND["device_compute"]], dtype=np.int8)
                part = [int(self.start[t] - self.start[s])]
                row = self.links.device_rows[self.work[s : s + 1]]
                begins = [int(self.begin_node[s])], [int(self.begin_node[t])]
                self.edges.add(*begins, part, "work", kind, row, inferred=True)
            missing[t] = 0
        way = way + np.where(slow_call, missing, 0)
        small = explained & (missing > 0) & (missing <= JITTER_NS)
        by_launch = small & (ready_launch >= ready_stream) & (ready_launch >= ready_wait)
        by_stream = small & ~by_launch & (ready_stream >= ready_wait)
        way = way + np.where(by_launch, missing, 0)
        gap = gap + np.where(by_stream, missing, 0)
        by_wait = small & ~by_launch & ~by_stream
        rows = self.links.device_rows[self.work]
        at = np.flatnonzero(launchable)
        calls = self.links.launch_row[self.work[at]]
        sources = self._find_nodes(self.trace.thread[calls], self.trace.start_ns[calls])
        placed = sources >= 0
        self.edges.add(sources[placed], self.begin_node[at[placed]], way[at[placed]], "latency", row=rows[at[placed]])
        at = np.flatnonzero(chained)
        self.edges.add(self.end_node[previous[at]], self.begin_node[at], gap[at], "gap", row=rows[at])
        at = np.flatnonzero(overlapping)
        self.edges.add(
            self.begin_node[previous[at]], self.begin_node[at], self.start[at] - self.start[previous[at]], "gap"
        )
        for s, t, weight, inferred in waits:
            extra = int(missing[t]) if by_wait[t] and int(self.end[s]) + weight == int(ready_wait[t]) else 0
            nodes = [int(self.end_node[s])], [int(self.begin_node[t])]
            self.edges.add(*nodes, [weight + extra], "stream_wait", inferred=inferred)
        # Work that was launched before the window, or by no call in the trace, and follows nothing, stays in place.
        alone = np.flatnonzero(~explained & ~overlapping)
        self.edges.add(
            np.zeros(len(alone), dtype=np.int64), self.begin_node[alone], self.start[alone] - self.low, "anchor"
        )

    def _infer_stream_waits(self, delayed: Int64s) -> dict[int, int]:
        """For work that begins late, the work on another stream that it waited for: work that ended just before and was
        launched earlier, else work that filled the device and was about to end."""
        found: dict[int, int] = {}
        if len(delayed) == 0:
            return found
        order = np.argsort(self.end, kind="stable")
        ends = self.end[order]
        rows = self.links.device_rows[self.work]
        device, is_kernel = self.trace.device[rows], self.trace.category[rows] == Category.KERNEL
        fills = is_kernel & (self.classes.kind[self.work] == COMPUTE)
        at = np.searchsorted(ends, self.start[delayed], side="right") - 1
        until = np.searchsorted(ends, self.start[delayed] + FULL_DEVICE_NS, side="right")
        for target, last, stop in zip(delayed.tolist(), at.tolist(), until.tolist(), strict=True):
            start = int(self.start[target])
            for back in range(last, max(-1, last - 16), -1):
                source = int(order[back])
                if start - self.end[source] > INFERRED_WAIT_NS:
                    break
                other = self.stream[source] != self.stream[target] and device[source] == device[target]
                if other and self.called[source] <= self.called[target] and self.start[source] < start:
                    found[target] = source
                    break
            if target in found or not is_kernel[target]:
                continue
            for after in range(last + 1, min(stop, last + 17)):
                source = int(order[after])
                other = self.stream[source] != self.stream[target] and device[source] == device[target]
                if other and fills[source] and start - self.start[source] > self.end[source] - start:
                    found[target] = source
                    break
        return found

    def _link_full_queues(self) -> None:
        """Launching calls that found no room in the queue return when earlier work begins."""
        known = np.flatnonzero(self.known)
        if len(known) <= QUEUE_COUNT:
            return
        trace = self.trace
        calls, first = np.unique(self.links.launch_row[self.work[known]], return_index=True)
        begin, lasted = trace.start_ns[calls], trace.duration_ns[calls]
        usual = int(np.sort(lasted)[(len(lasted) - 1) // 2])
        device = trace.device[self.links.device_rows[self.work]]
        for one in np.unique(device).tolist():
            mine = np.flatnonzero(device == one)
            called = np.sort(self.called[mine])
            by_start = mine[np.argsort(self.start[mine], kind="stable")]
            started = self.start[by_start]
            depth = np.searchsorted(called, begin, side="right") - np.searchsorted(started, begin, side="right")
            full = (lasted > 5 * usual) & (depth >= QUEUE_COUNT) & (device[known[first]] == one)
            for i in np.flatnonzero(full).tolist():
                end = int(begin[i] + lasted[i])
                at = int(np.searchsorted(started, end, side="right")) - 1
                if end > self.high or at < 0 or started[at] <= begin[i]:
                    continue
                holder = self.threads[int(trace.thread[calls[i]])]
                place = int(np.searchsorted(holder.time_ns, end)) - 1
                if place < 0 or holder.time_ns[place + 1] != end:
                    continue
                made_room = int(by_start[at])
                weight = end - int(self.start[made_room])
                holder.weight[place] = min(int(holder.weight[place]), max(usual, weight))
                nodes = [int(self.begin_node[made_room])], [int(holder.node[place + 1])]
                self.edges.add(*nodes, [weight], "host_wait", row=calls[i : i + 1], inferred=True)

    # ---- recorded and inferred synchronization

    def _read_syncs(self) -> None:
        """The cuda_sync rows by correlation, and the calls that recorded events."""
        trace = self.trace
        rows = find_categories(trace, (Category.SYNC,))
        rows = rows[(trace.start_ns[rows] >= self.low) & (trace.start_ns[rows] < self.high)]
        kind_rows, kind_at, table = trace.texts("sync_kind")
        kind_of = {row: table[i] for row, i in _pick(kind_rows, kind_at, rows).items()}
        waited = _pick(*trace.integers("wait_on_stream"), rows)
        recorded = _pick(*trace.integers("wait_on_record_correlation"), rows)
        self.syncs: dict[int, tuple[str, int, int, int]] = {}
        labels: dict[tuple[int, str], int] = {}
        device_rows = self.links.device_rows
        for stream, row in zip(*np.unique(trace.stream[device_rows], return_index=True), strict=True):
            number = int(trace.device[device_rows[row]])
            labels[(number, trace.stream_labels[int(stream)])] = int(stream)
        for row in rows.tolist():
            target = labels.get((int(trace.device[row]), str(waited.get(row, NONE))), NONE)
            kind = kind_of.get(row, trace.names[trace.name[row]])
            self.syncs[int(trace.correlation[row])] = (kind, int(trace.stream[row]), target, recorded.get(row, NONE))
        wanted = np.unique(np.array([c for c in recorded.values() if c >= 0], dtype=np.int64))
        calls = find_categories(trace, (Category.RUNTIME,))
        calls = calls[np.isin(trace.correlation[calls], wanted)]
        calls = calls[match_names(trace, trace.name[calls], _EVENT_RECORD)]
        self.records = dict(zip(trace.correlation[calls].tolist(), trace.start_ns[calls].tolist(), strict=True))

    def _sort_calls(self, key: NDArray[np.integer], work: Int64s) -> dict[int, _Queue]:
        """The queue of every value of ``key``, which has one entry for each work."""
        queues = {}
        for value, mine in split_by_thread(key.astype(np.int32)):
            order = work[mine][np.argsort(self.called[work[mine]], kind="stable")]
            queues[value] = _Queue(self.called[order], order)
        return queues

    def _link_streams(self) -> None:
        """Waits of streams for events: (work that is waited for, work that waits)."""
        self._read_syncs()
        known = np.flatnonzero(self.known)
        self.queues = self._sort_calls(self.stream, np.arange(len(self.work)))
        self.of_threads = self._sort_calls(self.trace.thread[self.links.launch_row[self.work[known]]], known)
        waits: dict[tuple[int, int], None] = {}
        trace = self.trace
        waiting_calls = [c for c, (kind, *_) in self.syncs.items() if "Wait" in kind]
        rows = find_categories(trace, (Category.RUNTIME,))
        rows = rows[np.isin(trace.correlation[rows], np.array(waiting_calls, dtype=np.int64))]
        for row in rows.tolist():
            kind, waiting, target, record = self.syncs[int(trace.correlation[row])]
            called = int(trace.start_ns[row])
            if "Wait" not in kind or waiting not in self.queues or target not in self.queues:
                continue
            source = self.queues[target].last_until(self.records.get(record, called))
            queue = self.queues[waiting]
            at = int(np.searchsorted(queue.called_ns, called, side="right"))
            if source >= 0 and at < len(queue.work) and self.end[source] <= self.start[queue.work[at]]:
                waits[(source, int(queue.work[at]))] = None
        self.stream_waits = list(waits)

    def _link_host_waits(self) -> None:
        """Calls that return once the device is done."""
        trace, host = self.trace, self.host
        unit = trace.facts.time_unit_ns
        for place in np.flatnonzero(self.is_sync).tolist():
            row, begin, end = int(host.rows[place]), int(host.start_ns[place]), int(host.end_ns[place])
            if end > self.high:
                continue
            thread = int(host.thread[place])
            targets, recorded = self._find_waited(row, begin, end, thread)
            done = [target for target in targets if self.end[target] <= end + unit]
            self._hold(thread, begin, end, done, row, inferred=not recorded)
        # A copy from or to pageable memory is done, or at least begun and staged, when its call returns.
        copies = trace.category[self.links.device_rows[self.work]] == Category.MEMCPY
        pageable = copies & match_names(trace, trace.name[self.links.device_rows[self.work]], re.compile("Pageable"))
        for work in np.flatnonzero(pageable & self.known).tolist():
            row = int(self.links.launch_row[self.work[work]])
            begin, end = int(trace.start_ns[row]), int(trace.start_ns[row] + trace.duration_ns[row])
            if self.end[work] <= end <= self.high:
                self._hold(int(trace.thread[row]), begin, end, [work], row, inferred=True)

    def _find_waited(self, row: int, begin: int, end: int, thread: int) -> tuple[list[int], bool]:
        """(works that the call [begin, end) waits for, whether the trace records that)."""
        everything = [work for queue in self.queues.values() if (work := queue.last_until(begin)) >= 0]
        missing = ("", NONE, NONE, NONE)
        kind, stream, waited, record = self.syncs.get(int(self.trace.correlation[row]), missing)
        if _DEVICE_WIDE.search(self.trace.names[self.trace.name[row]]) or "Context" in kind or "Device" in kind:
            return everything, True
        for word, target, until in (("Stream", stream, begin), ("Event", waited, self.records.get(record, begin))):
            if word in kind and target >= 0:
                work = self.queues[target].last_until(until) if target in self.queues else NONE
                return ([work] if work >= 0 else []), True
        # Nothing is recorded: most likely the stream that this thread used last, else what ended within the call.
        own = self.of_threads[thread].last_until(begin) if thread in self.of_threads else NONE
        if own >= 0 and self.end[own] <= end:
            return [own], False
        ended = [work for work in everything if self.end[work] <= end]
        return ([max(ended, key=lambda work: int(self.end[work]))] if ended else []), False

    def _hold(self, thread: int, begin: int, end: int, works: list[int], row: int, *, inferred: bool) -> None:
        """The call [begin, end) cannot return before the works have ended."""
        one = self.threads[thread]
        at = int(np.searchsorted(one.time_ns, end)) - 1
        if at < 0 or one.time_ns[at + 1] != end:
            return
        last = max((int(self.end[w]) for w in works), default=begin)
        before = int(one.time_ns[at])
        if last > before:
            one.weight[at] = min(int(one.weight[at]), max(0, end - last))
        done = self.end[works]
        tail = np.where(done > begin, np.maximum(end - done, 0), min(end - begin, CALL_TAIL_NS))
        # Of several streams, that of the last work held the call: the others would have let it go after the same tail.
        holds = (done <= begin) | (done == last)
        weight = np.where(holds, np.minimum(tail, end - done), max(0, end - last))
        count = len(works)
        nodes = self.end_node[works], [int(one.node[at + 1])] * count
        self.edges.add(*nodes, weight, "host_wait", row=[row] * count, inferred=inferred)

    # ---- host threads among each other

    def _link_passes(self) -> None:
        """Backward passes on their own threads, while the main thread waits."""
        main = self.threads[self.main]
        # Only where nothing but ranges of the user is open on the main thread.
        soft = np.flatnonzero(np.append(self.is_soft, True)[main.place])
        for thread, one in self.threads.items():
            if thread == self.main or len(one.time_ns) == 0 or self._is_comm_thread(thread):
                continue
            a, b = self.host.bounds[thread]
            top = np.flatnonzero(self.host.parent[a:b] < 0) + a
            if len(soft) == 0:
                continue
            start, end = self.host.start_ns[top], np.minimum(self.host.end_ns[top], self.high)
            segment = soft[np.maximum(np.searchsorted(main.time_ns[soft], start, side="right") - 1, 0)]
            inside = (main.time_ns[segment] <= start) & (end <= main.time_ns[segment + 1])
            # One pass for each segment of the main thread that contains some of this thread's work.
            for s in np.unique(segment[inside]).tolist():
                mine = np.flatnonzero(inside & (segment == s))
                begun, done = int(start[mine[0]]), int(end[mine].max())
                first, last = one.node_at(begun), one.node_at(done)
                went, came = int(main.time_ns[s]), int(main.time_ns[s + 1])
                self.edges.add([int(main.node[s])], [first], [begun - went], "fork", inferred=True)
                self.edges.add([last], [int(main.node[s + 1])], [came - done], "join", inferred=True)
                main.weight[s] = 0
                main.role[s] = ROLE["idle"]
                self._rest_before(one, begun)

    def _rest_before(self, one: _Thread, time_ns: int) -> None:
        """The thread had nothing to do until then: only its order counts."""
        at = int(np.searchsorted(one.time_ns, time_ns)) - 1
        if at >= 0 and one.place[at] < 0:
            one.weight[at] = 0
            one.role[at] = ROLE["idle"]

    def _is_comm_thread(self, thread: int) -> bool:
        a, b = self.host.bounds.get(thread, (0, 0))
        rows = self.host.rows[a:b][self.host.parent[a:b] < 0]
        return len(rows) > 0 and bool(match_names(self.trace, self.trace.name[rows], _HOST_COMM).all())

    def _find_nodes(self, thread: NDArray[np.int32], time_ns: Int64s) -> Int64s:
        """Node of each (thread, instant); -1 if its thread has none there."""
        found = np.full(len(time_ns), NONE, dtype=np.int64)
        for number, mine in split_by_thread(thread):
            if number not in self.threads:
                continue
            one = self.threads[number]
            at = np.minimum(np.searchsorted(one.time_ns, time_ns[mine]), len(one.time_ns) - 1)
            found[mine] = np.where(one.time_ns[at] == time_ns[mine], one.node[at], NONE)
        return found

    # ---- the complete graph

    def _finish(self) -> StepGraph:
        time = np.concatenate(self.nodes)
        edges = np.concatenate(self.edges.parts, axis=1)
        source, target, weight = edges[:3]
        edges = edges[:, time[source] + weight <= time[target]]
        loose = np.ones(len(time), dtype=bool)
        loose[edges[1]] = False
        loose[0] = False
        alone = np.flatnonzero(loose)
        anchors = _Edges()
        anchors.add(np.zeros_like(alone), alone, time[alone] - self.low, "anchor")
        edges = np.concatenate([edges, *anchors.parts], axis=1)
        edges = edges[:, order_edges(time, edges[0], edges[1])]
        source, target, weight, role, kind, row, guessed = edges
        main = self.threads[self.main]
        ends = self.steps.end_ns[self.first : self.last + 1]
        boundaries = main.node[np.searchsorted(main.time_ns, ends)]
        reach = np.full(len(time), np.iinfo(np.int64).min // 4, dtype=np.int64)
        np.maximum.at(reach, target, time[source] + weight)
        reach[0] = time[0]
        work_step = self.steps.find_step(self.called)
        work_step = np.where(self.carried | (work_step < 0), NONE, work_step - self.first)
        return StepGraph(
            low_ns=self.low,
            time_ns=time,
            source=source,
            target=target,
            weight_ns=weight,
            role=role.astype(np.int8),
            kind=kind.astype(np.int8),
            row=row,
            work=self.work,
            work_begin=self.begin_node,
            work_end=self.end_node,
            work_step=work_step,
            boundaries=boundaries,
            unexplained=time - reach,
            inferred_count=int(guessed.sum()),
        )


def _pick(rows: Int64s, values: Int64s, wanted: Int64s) -> dict[int, int]:
    """A sparse fact of some rows only."""
    kept = np.isin(rows, wanted)
    return dict(zip(rows[kept].tolist(), values[kept].tolist(), strict=True))
