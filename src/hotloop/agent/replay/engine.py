"""Events of one process, in order -> its rows, and facts as they become known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotloop.core import events as ev
from hotloop.core.recording import DEVICE_TIME_FIELDS, FIELD

from .counting import Counting
from .loaders import FetchTotals, Loaders
from .recorder import (
    AFTER_BACKWARD,
    AFTER_INPUT,
    BACKWARD,
    CHECKPOINT,
    COMMUNICATION,
    FORWARD,
    H2D,
    INPUT,
    ITERATOR,
    NOGRAD,
    OPTIMIZER,
    OTHER,
    START,
    TIMES,
    Recorder,
    Row,
)
from .repeats import REPEATED, REPEATED_NS, Repeats

BATCHES = FIELD["batches"]
FORWARDS = FIELD["forwards"]
NOGRAD_FORWARDS = FIELD["nograd_forwards"]
SYNCED = FIELD["synced_backwards"]
GC_NS, GC_COUNT = FIELD["gc_ns"], FIELD["gc_count"]
COMPILE_NS, COMPILES = FIELD["compile_ns"], FIELD["compiles"]
GAPS_BEFORE_FORWARD = (OTHER, AFTER_INPUT, AFTER_BACKWARD)
"""Where a loop makes its batch ready: before its first forward, after a batch came, between two micro-batches."""
DEVICE_FIELDS = tuple(FIELD[name] for name in DEVICE_TIME_FIELDS)
MOST_KNOWN = 1_000
_COUNTERS = {COMMUNICATION: FIELD["collectives"], CHECKPOINT: FIELD["checkpoints"]}
_ENDED = {ev.HOW_COMPLETED: "completed", ev.HOW_EXCEPTION: "exception", ev.HOW_INTERRUPTED: "signal"}

Place = list[Any]


class Engine:
    """``feed`` takes events, ``tell`` facts. ``write_row`` and ``write_fact`` get what is known; a fact holds ``t``, ns
    since ``anchor_ns``. Nothing is written before the first backward or optimizer step."""

    def __init__(
        self,
        anchor_ns: int,
        write_row: Callable[[Row[int]], None],
        write_fact: Callable[[dict[str, Any]], None],
        make_recorder: Callable[[Callable[[], int]], Recorder] = Recorder,
    ) -> None:
        self.now_ns = anchor_ns
        self._write_fact = write_fact
        self.recorder = make_recorder(lambda: self.now_ns)
        self.recorder.anchor_ns, self.recorder.emit = anchor_ns, write_row
        self.process: dict[str, Any] | None = None
        self.access: dict[str, Any] | None = None
        self.ended: str | None = None
        self.exception: str | None = None
        self.fetches = FetchTotals()
        """The totals of a loader's worker."""
        self.events = 0
        self.device_memory: dict[str, Any] | None = None
        self.wants_refresh = False
        self.rested_steps = 0
        self._places: dict[int, Place | None] = {}
        self._gc: list[int] = [0, 0, 0]
        self._gc_ns = 0
        self._gc_place: Place | None = None
        self._compile_place: Place | None = None
        self._reset()
        self._handlers: dict[int, Callable[..., None]] = {
            ev.OWNER: self._owner, ev.ITERATOR_IN: self._iterator_in, ev.ITERATOR_OUT: self._iterator_out,
            ev.BATCH_IN: self._batch_in, ev.BATCH_OUT: self._batch_out, ev.BATCH_END: self._batch_end,
            ev.FETCH: self._fetch, ev.FORWARD_IN: self._forward_in, ev.FORWARD_OUT: self._forward_out,
            ev.BACKWARD_IN: self._backward_in, ev.BACKWARD_OUT: self._backward_out, ev.STEP_IN: self._step_in,
            ev.STEP_OUT: self._step_out, ev.SCALER_IN: self._scaler_in, ev.SCALER_OUT: self._scaler_out,
            ev.SCALER_WORK_IN: self._scaler_work_in, ev.SCALER_WORK_OUT: self._scaler_work_out,
            ev.PHASE_IN: self._phase_in, ev.PHASE_OUT: self._phase_out, ev.COLLECTED: self._collected,
            ev.COMPILE_IN: self._compile_in, ev.COMPILE_OUT: self._compile_out, ev.GRAPH: self._graph,
            ev.INNER_BATCH: self._inner_batch, ev.RECOMPUTED: self._recomputed, ev.FLAG: self._flag,
            ev.LEFT_OUT: self._left_out, ev.END: self._end, ev.RESTED: self._rested, ev.SKIPPED: self._skipped,
            ev.TIMED: self._timed, ev.DEVICE_TIMES: self._device_times,
        }  # fmt: skip

    def _reset(self) -> None:
        recorder = self.recorder
        recorder.reset()
        self.counting = Counting(recorder)
        self.loading = Loaders(recorder, self.counting)
        self.repeats = Repeats(recorder)
        self._waiting: tuple[Any, int, int] | None = None  # the loader's state, depth and start of a wait
        self._forward: tuple[int, int, int, bool, int, int, bool, bool] | None = None
        self._steps: list[tuple[int, int]] = []
        self._phases: list[int | None] = []
        self._scaler: tuple[int, int] | None = None
        self._scaler_work: tuple[int, int, int] | None = None
        self._backward_depth: int | None = None
        self._retained = False
        self._models: dict[int, dict[str, Any]] = {}
        self._models_told: dict[int, int] = {}
        self._last_root = self._told_root = 0
        self._preparers: set[int] = set()
        self._learners: set[int] = set()
        """Modules with parameters that were called with gradients."""
        self._known: set[int] = set()
        self._described: set[int] = set()
        """Indexes of the optimizers that were described."""
        self._held: dict[int, dict[str, Any]] = {}
        self._compile_ns = 0
        self._graphs = {"calls": 0, "ns": 0, "backward_calls": 0, "backward_ns": 0, "forwards": 0}
        self._graph_forward: tuple[int, int] = (-1, -1)
        self._timed_row: tuple[int, int] | None = None
        self._timed_rows: dict[int, int] = {}
        """Numbers of timed steps, and the indexes of their rows."""

    def feed(self, code: int, now_ns: int, a: int, b: int, c: int, d: int, e: int, f: int) -> None:
        """One event. Codes that are not known mean nothing."""
        self.now_ns = max(self.now_ns, now_ns)
        self.events += 1
        handler = self._handlers.get(code)
        if handler is not None:
            handler(a, b, c, d, e, f)

    def copied(self, data: bytes, what: int, rows: int, columns: int, item: int) -> None:
        """A copy of a part of a batch."""
        self.counting.copied(data, what, rows, columns, item)
        if self._forward is not None and not self.loading.states:
            self.counting.count_direct_copy(self._forward[0])

    # -- rows, facts ------------------------------------------------------------------------------------------------

    def _record(self, fact: dict[str, Any]) -> None:
        self._write_fact({**fact, "t": self.now_ns - self.recorder.anchor_ns})

    def tell(self, fact: dict[str, Any]) -> None:
        """A fact as the training sent it."""
        kind, key = fact.pop("kind", None), fact.pop("key", 0)
        if kind == "place":
            if len(self._places) > 100 * MOST_KNOWN:
                self._places.clear()
            self._places[fact.get("of", 0)] = fact.get("where")
            self.recorder.optimizers.built(fact.get("of", 0))
        elif kind == "loader":
            state = self.loading.describe(key, fact)
            fact.pop("first_batch_size", None)
            where = self._places.get(key)
            state.facts = {"kind": kind, "id": state.id, **fact, "where": where}
            self._record(state.facts)
        elif kind == "workers":
            self.loading.state_of(key).worker_pids.update(p for p in fact.get("pids", ()) if type(p) is int)
        elif kind == "model":
            if len(self._models) > MOST_KNOWN:
                self._models.clear()
            self._models[key] = fact
            self._models_told.pop(key, None)
            self._told_root = 0 if self._told_root == key else self._told_root
            if fact.pop("time_first", False):
                self.counting.time_first[key] = None
            else:
                self.counting.time_first.pop(key, None)
        elif kind == "optimizer":
            index = self._index_of(key)
            if index not in self._described:  # another one made in its place is as it was
                self._described.add(index)
                self._record({"kind": kind, "index": index, **fact, "where": self._places.get(key), "steps": 0})
        elif kind == "held":
            self._held[self._index_of(key)] = fact
            if len(self._held) >= len(self.recorder.optimizers):
                self._record({"kind": "held", "device": self._device(), **self._held_bytes()})
        elif kind == "process":
            self.process = {"kind": kind, **fact}
            self._record(self.process)
        elif kind == "access":
            self.access = fact.get("layout")
        elif kind == "compile":
            graphs = self._graphs
            calls = graphs["calls"] or None
            self._record(
                {"kind": kind, **fact, "where": self._compile_place, "graph_calls": calls,
                 "graph_calls_ns": calls and graphs["ns"], "graph_forwards": calls and graphs["forwards"],
                 "graph_backward_calls": calls and graphs["backward_calls"],
                 "graph_backward_calls_ns": calls and graphs["backward_ns"]}
            )  # fmt: skip
        elif kind == "compile_place":
            self._compile_place = fact.get("where")
        elif kind == "collect_place":
            self._gc_place = fact.get("where")
        elif kind == "ddp":
            self._record({"kind": kind, **fact, "where": self._places.get(fact.pop("of", 0))})
        elif kind == "metric" or kind == "ddp_stats":
            self._record({"kind": kind, "row": self.recorder.rows, **fact})
        elif kind == "exception":
            self.exception = fact.get("name")
        elif kind == "out_of_memory":
            self.ended = "oom"
            self._record({"kind": kind, **fact, **self._held_bytes()})
        elif kind == "device":
            memory = fact.get("memory") or {}
            self.recorder.set_known(FIELD["device_allocated_bytes"], memory.get("allocated", -1))
            self.recorder.set_known(FIELD["device_reserved_bytes"], memory.get("reserved", -1))
            self.device_memory = memory
        elif kind == "refresh":
            self.wants_refresh = True
        elif isinstance(kind, str):
            self._record({"kind": kind, **fact})

    def models(self) -> list[dict[str, Any]]:
        """Facts of the models that were called."""
        return list(self._models.values())

    def _device(self) -> str:
        return next((m["device"] for m in self._models.values() if m.get("device")), "cpu")

    def _held_bytes(self) -> dict[str, Any]:
        """Parameters, gradients and states of all optimizers; of a training that has none yet, what its models hold."""
        names = ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes")
        if not self._held:
            models = list(self._models.values())[-1:]
            size = sum(m.get("bytes") or 0 for m in models)
            return dict(zip(names, (size, sum(m.get("learning_bytes") or 0 for m in models), 0), strict=True))
        return {name: sum(held.get(name, 0) for held in self._held.values()) for name in names}

    def totals(self, workers: dict[int, FetchTotals]) -> list[dict[str, Any]]:
        """Facts of which only the newest counts: loaders, collections."""
        found = self.loading.totals(workers)
        if self.counting.input_stays:
            found.append({"kind": "direct_input", "stays": True})
        if self._gc_ns:
            found.append(
                {"kind": "gc", "count": sum(self._gc), "ns": self._gc_ns, "by_generation": list(self._gc),
                 "explicit_where": self._gc_place}
            )  # fmt: skip
        return found

    def finish(self, now_ns: int) -> None:
        """The process is gone: what came after its last row, and how it ended where it said so."""
        self.now_ns = max(self.now_ns, now_ns)
        if self.recorder.started:
            if self.ended is None and self.exception is None:
                self.now_ns = max(self.recorder.last_ns, min(self.now_ns, now_ns))
            self.recorder.close_tail()
        elif self.ended == "oom":
            self.recorder.close_tail()
        if self.ended is not None:
            self._record({"kind": "end", "ended": self.ended, "exception": self.exception, "steps": self.recorder.rows})

    def resume(self) -> None:
        """Events are missing: what was open before them is not known to be open any more."""
        self.recorder.unwind(1)
        self._waiting = self._forward = self._scaler = self._scaler_work = self._backward_depth = None
        self._timed_row = None
        self._steps.clear()
        self._phases.clear()

    def _owner(self, *_: int) -> None:
        facts = self._models, self.loading.told()
        self._reset()
        self._models = facts[0]
        for state in facts[1]:
            self._record(state.facts or {})

    # -- loading ----------------------------------------------------------------------------------------------------

    def _iterator_in(self, loader: int, *_: int) -> None:
        self._drop_aborted_steps()
        is_other = self.loading.iterator_begins(loader)
        recorder = self.recorder
        self._waiting = (None, len(recorder.stack), self.now_ns)
        recorder.enter(ITERATOR)
        recorder.other_wait = is_other

    def _iterator_out(self, loader: int, iterator: int, *_: int) -> None:
        if self._waiting is None:
            return
        (_, depth, start_ns), self._waiting = self._waiting, None
        self.recorder.unwind(depth)
        self.recorder.row[FIELD["iterators"]] += 1
        self.loading.iterator_created(loader, iterator, self.now_ns - start_ns)

    def _batch_in(self, iterator: int, *_: int) -> None:
        self._drop_aborted_steps()
        state, recorder = self.loading.before_batch(iterator), self.recorder
        is_other = self.loading.is_surely_other(state)
        self._waiting = (state, len(recorder.stack), self.now_ns)
        recorder.enter(INPUT)
        recorder.other_wait = is_other

    def _batch_out(self, iterator: int, flags: int, declared: int, lead: int, sequences: int, _f: int) -> None:
        if self._waiting is None:
            return
        (state, depth, start_ns), self._waiting = self._waiting, None
        self.repeats.batches += 1
        self.recorder.unwind(depth)
        self.loading.after_batch(state, self.now_ns - start_ns, flags, declared, lead, sequences)

    def _batch_end(self, iterator: int, *_: int) -> None:
        if self._waiting is None:
            return
        (state, depth, _start_ns), self._waiting = self._waiting, None
        self.loading.exhausted(state)
        self.recorder.unwind(depth)

    def _fetch(self, fetch_ns: int, cpu_ns: int, collate_ns: int, draws: int, stands_for: int, _f: int) -> None:
        n = max(1, stands_for)
        self.fetches.add(n, n * fetch_ns, n * cpu_ns, n * collate_ns)
        if self._waiting is not None:
            self.loading.fetched(fetch_ns, cpu_ns, collate_ns, draws, stands_for)

    # -- modules ----------------------------------------------------------------------------------------------------

    def _forward_in(self, key: int, flags: int, first: int, every: int, lead: int, sequences: int) -> None:
        recorder, gap = self.recorder, self.recorder.stack[-1]
        if gap in (FORWARD, NOGRAD):  # its end was not seen
            recorder.leave()
            gap = recorder.stack[-1]
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
            self._preparers.clear()
            self._learners.clear()
        is_new = bool(flags & ev.FIRST_TIME) or key not in self._known
        self._known.add(key)
        if flags & ev.FIRST_TIME:
            self._preparers.discard(key)
        depth = len(recorder.stack)
        builds_graph = bool(flags & ev.GRAD) and recorder.is_evaluating() and self.loading.reads_other
        if builds_graph:
            flags &= ~ev.GRAD  # a test loop without no_grad, unless a backward follows
        with_gradients = bool(flags & ev.GRAD)
        if key in self._preparers or (not with_gradients and gap == OPTIMIZER):
            # What prepares a batch belongs to the loop's own code; a compiled optimizer's graph to the optimizer.
            self._forward = None
            return
        if with_gradients:
            if recorder.burst is not None:
                recorder.end_burst()
            if flags & ev.LEARNS:
                self._last_root = key
                if not recorder.row[BATCHES]:
                    self.counting.count_direct(key, flags, first, lead, sequences)
            if flags & ev.SYNC_KNOWN:
                recorder.row[SYNCED] = max(0, recorder.row[SYNCED]) + bool(flags & ev.SYNCED)
        else:
            recorder.begin_nograd(not flags & ev.TRAINING)
        if with_gradients and flags & ev.LEARNS:
            self._learners.add(key)
        learns = key in self._learners
        if learns and recorder.burst is not None:
            recorder.burst.learner_forwards += 1
        repeats = OPTIMIZER not in recorder.stack and self.repeats.look(  # a closure's weights are others each time
            key, flags, first, every, without_gradients=not with_gradients, learns=learns
        )
        recorder.enter(FORWARD if with_gradients else NOGRAD)
        self._forward = (key, flags, depth, repeats, gap, self.now_ns, is_new, builds_graph)

    def _forward_out(self, key: int, failed: int, result: int, *_rest: int) -> None:
        forward, self._forward = self._forward, None
        if forward is None or forward[0] != key:
            return
        flags, depth, repeats, gap, start_ns, is_new, builds_graph = forward[1:]
        recorder = self.recorder
        recorder.unwind(depth)
        row = recorder.row
        if not flags & ev.GRAD:
            recorder.end_nograd(self.now_ns - start_ns if builds_graph else 0)
        if failed:
            return
        if repeats:
            row[REPEATED] += 1
            row[REPEATED_NS] += self.now_ns - start_ns
            row[FIELD["repeated_nograd_forwards"]] += not flags & ev.GRAD
        row[FORWARDS if flags & ev.GRAD else NOGRAD_FORWARDS] += 1
        # A criterion takes what the model gave, and a model that keeps its weights in plain tensors gives what needs
        # gradients. What neither takes nor gives such tensors, before the model has computed, prepares.
        others = flags & (ev.LEARNS | ev.NEEDS_GRADIENTS | ev.HIDES_MODULES)
        if is_new and not others and gap in GAPS_BEFORE_FORWARD and result == 1:
            self._preparers.add(key)

    def _inner_batch(self, samples: int, *_: int) -> None:
        if len(self.counting.inner_batches) < 8:
            self.counting.inner_batches.add(samples)

    def _recomputed(self, spent_ns: int, *_: int) -> None:
        row = self.recorder.row
        row[FIELD["recompute_ns"]] = max(0, row[FIELD["recompute_ns"]]) + spent_ns

    def _graph(self, spent_ns: int, with_gradients: int, *_: int) -> None:
        recorder, graphs = self.recorder, self._graphs
        if BACKWARD in recorder.stack:
            graphs["backward_calls"] += 1
            graphs["backward_ns"] += spent_ns
        elif FORWARD in recorder.stack:
            graphs["calls"] += 1
            graphs["ns"] += spent_ns
            forward = (recorder.rows, recorder.row[FORWARDS])
            graphs["forwards"] += forward != self._graph_forward
            self._graph_forward = forward
        elif len(recorder.stack) == 1 and with_gradients and recorder.last_ns:  # a compiled function
            now_ns = self.now_ns
            self.now_ns = max(recorder.last_ns, now_ns - spent_ns)
            recorder.enter(FORWARD)
            self.now_ns = now_ns
            recorder.leave()
            recorder.row[FORWARDS] += 1

    # -- backward and optimizers --------------------------------------------------------------------------------------

    def _backward_in(self, retains: int, *_: int) -> None:
        recorder, loading = self.recorder, self.loading
        if recorder.burst is not None:
            recorder.give_back_forward()
            recorder.end_burst()
        self.counting.decide_sample_dim()
        if self.counting.direct_samples:
            self.counting.add_direct()
        state = loading.last_state
        if state is not None and not state.feeds_backward and recorder.row[BATCHES]:
            loading.found_feeding(state)
        if loading.unknown:
            loading.sort_out(state)
        if self._last_root != self._told_root:
            self._tell_root()
        self._backward_depth, self._retained = len(recorder.stack), bool(retains)
        recorder.enter(BACKWARD)

    def _tell_root(self) -> None:
        """The last outermost module with parameters is another one than at the backward before."""
        self._told_root = root = self._last_root
        fact = self._models.get(root)
        if fact is not None and root not in self._models_told:
            number = self._models_told[root] = len(self._models_told)
            self._record({"kind": "model", "id": number, **fact})

    def _backward_out(self, failed: int, *_: int) -> None:
        depth, self._backward_depth = self._backward_depth, None
        if depth is None:
            return
        self.recorder.unwind(depth)
        if not failed:
            self.recorder.backward_ended(self._retained)
            self.repeats.backward_ended()

    def _index_of(self, key: int) -> int:
        return self.recorder.optimizers.index_of(key, self._places.get(key))

    def _drop_aborted_steps(self) -> None:
        """An optimizer's step that raised has no end: the loop that continues after it shows that."""
        if self._steps and not (BACKWARD in self.recorder.stack or self._forward is not None):
            self.recorder.unwind(self._steps[0][1])
            self._steps.clear()

    def _step_in(self, key: int, *_: int) -> None:
        while self._steps and any(open_key == key for open_key, _ in self._steps):
            self.recorder.unwind(self._steps.pop()[1])
        self._steps.append((key, len(self.recorder.stack)))
        self.recorder.optimizer_began()

    def _step_out(self, key: int, cpu_ns: int, *_: int) -> None:
        while self._steps:
            open_key, depth = self._steps.pop()
            if open_key == key:
                break
            self.recorder.unwind(depth)
        else:
            return
        if cpu_ns:
            self.recorder.cpu_read(cpu_ns)
        self.repeats.steps += 1
        self.recorder.optimizer_ended(depth, self._index_of(key))

    def _scaler_in(self, key: int, *_: int) -> None:
        self._scaler = (key, len(self.recorder.stack))
        self.recorder.scaler_began()

    def _scaler_out(self, key: int, failed: int, *_: int) -> None:
        scaler, self._scaler = self._scaler, None
        if scaler is None:
            return
        stepped = self.recorder.scaler_ended(scaler[1])
        if not stepped and not failed:
            self.recorder.step_skipped(self._index_of(key))

    def _scaler_work_in(self, *_: int) -> None:
        recorder = self.recorder
        if OPTIMIZER in recorder.stack:
            return
        self._scaler_work = (len(recorder.stack), recorder.stack[0], self.now_ns)
        recorder.enter(OPTIMIZER)

    def _scaler_work_out(self, *_: int) -> None:
        work, self._scaler_work = self._scaler_work, None
        if work is None:
            return
        depth, gap, start_ns = work
        self.recorder.unwind(depth)
        self.recorder.row[FIELD["scaler_ns"]] += self.now_ns - start_ns
        if depth == 1:
            self.recorder.stack[0] = gap  # after unscale_ the gap is still the one after backward

    # -- what else happens --------------------------------------------------------------------------------------------

    def _phase_in(self, field: int, *_: int) -> None:
        recorder = self.recorder
        if not recorder.last_ns or recorder.stack[-1] == field or (field == H2D and len(recorder.stack) != 1):
            self._phases.append(None)
            return
        self._phases.append(len(recorder.stack))
        recorder.enter(field)

    def _phase_out(self, field: int, *_: int) -> None:
        depth = self._phases.pop() if self._phases else None
        if depth is None:
            return
        self.recorder.unwind(depth)
        counter = _COUNTERS.get(field)
        if counter is not None:
            self.recorder.row[counter] += 1
        else:
            self.repeats.batches += 1

    def _collected(self, spent_ns: int, generation: int, *_: int) -> None:
        row = self.recorder.row
        row[GC_NS] += spent_ns
        row[GC_COUNT] += 1
        self._gc_ns += spent_ns
        if 0 <= generation < 3:
            self._gc[generation] += 1

    def _compile_in(self, *_: int) -> None:
        self._compile_ns = self.now_ns

    def _compile_out(self, *_: int) -> None:
        start_ns, self._compile_ns = self._compile_ns, 0
        if start_ns:
            self.recorder.row[COMPILE_NS] += self.now_ns - start_ns
            self.recorder.row[COMPILES] += 1

    def _flag(self, flag: int, value: int, *_: int) -> None:
        self.recorder.set_flag(flag, bool(value))

    def _rested(self, steps: int, *_: int) -> None:
        """Steps that were only counted: like those that were timed, as long as they took."""
        self.rested_steps += steps
        self.recorder.close_rested(steps)

    def _skipped(self, forwards: int, *_: int) -> None:
        """Forwards without gradients that were only counted, since the last timed one."""
        recorder = self.recorder
        spent_ns = self.now_ns - recorder.last_ns
        gap, row = recorder.stack[-1], recorder.row
        if forwards and len(recorder.stack) == 1 and row[NOGRAD] and spent_ns > 0:
            part_ns = spent_ns * row[NOGRAD] // (row[NOGRAD] + max(1, row[gap]))
            row[NOGRAD] += part_ns
            row[gap] -= part_ns  # what the next event charges to it
            row[NOGRAD_FORWARDS] += forwards

    def _timed(self, number: int, *_: int) -> None:
        """The device's times since the last of these belong to one row, or to none."""
        recorder, before = self.recorder, self._timed_row
        is_new = not any(recorder.row[field] for field in DEVICE_FIELDS)
        if before is not None and is_new and recorder.rows == before[1] + 1 and len(self._timed_rows) < MOST_KNOWN:
            self._timed_rows[before[0]] = before[1]
        self._timed_row = (number, recorder.rows) if number and is_new else None

    def _device_times(self, number: int, *times: int) -> None:
        index = self._timed_rows.pop(number, None)
        if index is not None:
            known = [None if ns < 0 else ns for ns in times[: len(DEVICE_TIME_FIELDS)]]
            self._record({"kind": "device_times", "row": index, **dict(zip(DEVICE_TIME_FIELDS, known, strict=True))})

    def _left_out(self, *_: int) -> None:
        recorder = self.recorder
        recorder.leave_out()
        row = recorder.row  # has begun already
        row[START] = recorder.last_ns - recorder.anchor_ns - sum(row[field] for field in TIMES)

    def _end(self, how: int, *_: int) -> None:
        self.ended = self.ended or _ENDED.get(how)
