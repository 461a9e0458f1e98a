"""What one process knows while it trains: its recorder, its objects, its file and its background thread.

A session is idle (wrappers time phases into memory, no file, no thread) until the first completed backward or
optimizer step; then it opens its recording and starts the background thread. A forked child begins anew.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch

from hotloop.core.recording import FIELD, UNKNOWN

from . import batches, facts
from .at_exit import run_at_exit
from .compiling import GraphCalls
from .device_events import CaptureWatch, cuda_device_timer, time_device
from .direct_forward import find_models_in_sight, find_running_forward
from .guard import GUARD, guarded
from .places import Place, caller_place, is_user_code, place_of
from .recorder import AFTER_INPUT, AFTER_NOGRAD, COUNTED, Recorder, Row
from .tracing import make_recorder
from .workers import Totals, WorkerTable
from .writer import FrameWriter

BATCHES = FIELD["batches"]
MICRO_BATCHES = FIELD["micro_batches"]
FORWARDS = FIELD["forwards"]
FORWARD = FIELD["forward_ns"]
REPEATED = FIELD["repeated_forwards"]
REPEATED_NS = FIELD["repeated_forward_ns"]
BACKWARDS = FIELD["backwards"]
SAMPLES = FIELD["samples"]
TOKENS = FIELD["tokens"]
PADDING = FIELD["padding_tokens"]
LONGEST = FIELD["longest_tokens"]
SYNCED = FIELD["synced_backwards"]
GC_NS = FIELD["gc_ns"]
GC_COUNT = FIELD["gc_count"]
FETCH_NS = FIELD["fetch_ns"]
FETCH_CPU_NS = FIELD["fetch_cpu_ns"]
COLLATE_NS = FIELD["collate_ns"]
FETCH_BATCHES = FIELD["fetch_batches"]
COMPILE_NS = FIELD["compile_ns"]
COMPILES = FIELD["compiles"]

LEARNING_ROWS = 4
"""For so many rows every nested module call is looked at (autocast, nested DDP)."""
TOKEN_SAMPLE_ROWS = 16
"""Tokens are counted in the first rows and then in every so many'th. Between these nothing is looked at after a row."""
MOST_COMPUTED = 64
"""Of so many modules the last forward with gradients is remembered."""
MATCHED_ROWS = 64
"""For so many rows inputs of forwards are remembered; later only if there have been forwards without
gradients, or some that repeated another one."""
TIMED_FETCHES = 64
"""So many batches are timed one by one where they are fetched in the training process, then one in four."""
RARELY_TIMED_FETCHES = 304
"""After so many timed ones, one in 16."""
FETCH_GAPS = (2, 4, 1, 5)
"""Batches that are left out between two timed ones: not evenly, because what a batch costs may have a period."""
MOST_LOOKS = 32
"""So often the frames above are searched for a model whose forward is called directly."""
MOST_FACTS_WAITING = 1_000
WATCH_ROWS = 64
"""Once the root class is known, nested modules are watched again in every so many'th row."""
MANY_NESTED_CALLS = 24
"""Fewer nested module calls a row are not worth narrowing the patch for."""


class LoaderState:
    """What is known of one DataLoader object."""

    __slots__ = (
        "batch_size",
        "batches",
        "facts",
        "feeds_backward",
        "first_wait_ns",
        "first_waits",
        "fresh",
        "id",
        "iterator_ns",
        "iterators",
        "last_samples",
        "main",
        "pending",
        "pending_samples",
        "sample_dim",
        "wait_ns",
        "whole_batch",
        "worker_pids",
    )

    def __init__(self, loader_id: int, described: dict[str, Any] | None, batch_size: int | None) -> None:
        self.id = loader_id
        self.facts = described
        self.batch_size = batch_size
        """Samples of its first batch, where the loader makes the batches."""
        self.sample_dim: int | None = None
        self.whole_batch = 0
        """Length of a leading dimension that needs no second look: the batch size, once it was seen there."""
        self.last_samples = 0
        self.feeds_backward: bool | None = None
        self.batches = self.iterators = self.pending = self.pending_samples = 0
        self.iterator_ns = self.first_wait_ns = self.first_waits = self.wait_ns = 0
        self.fresh = False
        self.main = Totals()
        self.worker_pids: set[int] = set()


class Session:
    """Collects; attach installs the wrappers that call it. No method that a wrapper calls raises: what runs in every
    step has its own ``try``, the others are ``guarded``.

    ``active`` is the thread whose calls are timed, 0 while there is none: all that a wrapper looks at in passing.
    """

    # What wrappers touch in every step lies side by side; everything else is in the dictionary.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_ddp_classes",
        "_direct_samples",
        "_fetch_state",
        "_last_loader",
        "_last_root",
        "_learners",
        "_others",
        "_pending_facts",
        "_told_root",
        "_undecided",
        "_unknown_loaders",
        "active",
        "fetches_to_skip",
        "iterator_ref",
        "learning",
        "loader_state",
        "matching_inputs",
        "recorder",
        "sampling_tokens",
    )

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.recorder: Recorder = make_recorder(options)
        self.anchor_ns = time.perf_counter_ns()
        self.anchor_wall_s = time.time()
        self.recorder.anchor_ns = self.anchor_ns
        self.table: WorkerTable | None = None
        self.missing_sites: list[str] = []
        self.module_patch: Any = None
        self.make_background: Callable[[Session, FrameWriter], Any] | None = None
        self.watch_ddp: Callable[[Any, Place | None], Any] = _watch_nothing
        self.patch_optimizer_class: Callable[[type], None] = _patch_nothing
        self.patch_forward: Callable[[type], None] = _patch_nothing
        self.meets_model: Callable[[Any], Any] = _meet_nobody
        """Called with every outermost module with parameters, before its first forward with gradients."""
        self.before_end: Callable[[], None] = _end_nothing
        self.hook_costs_ns: dict[str, float] | None = None
        self.captures = CaptureWatch()
        self._begin()

    def _begin(self) -> None:
        """The state of a process that has not trained yet."""
        self.recorder.reset()
        self.recorder.on_start = self._start
        self.recorder.on_row = self._after_row
        self._off = False
        self.owner = threading.get_ident()
        self.device_index: int | None = None
        self.learning = True
        self.in_recompute = False
        self.writer: FrameWriter | None = None
        self.background: Any = None
        self.ended = False
        self._places: dict[int, tuple[weakref.ref[Any] | None, Place | None]] = {}
        self._loaders: dict[int, LoaderState] = {}
        self._loader_refs: dict[int, weakref.ref[Any]] = {}
        self._iterators: weakref.WeakKeyDictionary[Any, LoaderState] = weakref.WeakKeyDictionary()
        self.iterator_ref: Callable[[], Any] = _nobody
        """The iterator whose batches were taken last, if its loader is known to feed backward."""
        self.loader_state: LoaderState | None = None
        self._last_loader: LoaderState | None = None
        self._unknown_loaders: list[LoaderState] = []
        self._training_loaders = 0
        self._fetch_state: LoaderState | None = None
        self.fetches_to_skip = 0
        self._fetches = self._fetch_gap = 0
        self._models: dict[int, weakref.ref[Any]] = {}
        self._models_count = 0
        self._last_root: Callable[[], Any] = _nobody
        self._told_root: Callable[[], Any] = _nobody
        self._learners: dict[int, type] = {}
        """Class of every outermost module with parameters, by identity."""
        self._others: dict[int, type] = {}
        """The same of those without (loss functions are modules too)."""
        self.matching_inputs = True
        self._direct_samples = 0
        self._direct_tokens: tuple[int, int, int] | None = None
        self._taken_from: Callable[[], Any] = _nobody
        """The iterator that the last batch came from, until it is exhausted."""
        self._time_first: dict[int, int | None] = {}
        """Of every outermost module that holds one with ``batch_first=False``: the dimension of its input that counts
        samples, None while that is not decided, UNKNOWN where it cannot be told."""
        self._undecided: tuple[int, tuple[int, int]] | None = None
        """Such a module and the shape of its input, until a backward follows."""
        self._inner_batches: set[int] = set()
        """Batch sizes seen at modules with ``batch_first=False``, whose inputs say which dimension is which."""
        self._ddp_classes: set[type] = set()
        self._pending_facts: list[dict[str, Any]] = []
        self._told: deque[dict[str, Any]] = deque()
        self._seen_inputs: list[tuple[int, weakref.ref[Any], bool, int, bool, int]] = []
        self._computed: dict[int, tuple[tuple[Any, ...], int, tuple[weakref.ref[Any], ...], bool]] = {}
        self._same_mode_repeats = 0
        self._rng_before: torch.Tensor | None = None
        self.optimizer_steps: defaultdict[int, int] = defaultdict(int)
        """Completed steps of every optimizer, by its number."""
        self._owners: dict[int, int] = {}
        """The number of the optimizer that updates a weight, by the weight's identity."""
        self._draws: dict[int, bool] = {}
        """Whether a model's repeated forward drew random numbers, by the model's identity."""
        self._maybe_metrics: tuple[int, int, int, int] = (0, UNKNOWN, 0, 0)
        self._direct_input: tuple[Callable[[], Any], int] = (_nobody, 0)
        self._input_stays = False
        self._looks = 0
        self._optimizers: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._facts_told: set[str] = set()
        self._compile_place: Place | None = None
        self.compile_used = False
        self._gc_by_generation = [0, 0, 0]
        self._gc_ns = 0
        self._gc_explicit: Place | None = None
        self._compile_started_ns = 0
        self.graph_calls = GraphCalls()
        self.subscribers: list[Any] = []
        self.nested_calls = 0
        self.sampling_tokens = True
        self.roots: set[type] = set()
        self._rows_looked_at = self._forwards = self._backwards = 0
        self.nograd_calls = self.collectives = self.checkpoints = 0
        self.deep_window_ns: int | None = None

    def reset_after_fork(self) -> None:
        """In a forked child: never touch the parent's file; begin as a process that has not trained."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.disown()
        self._begin()

    @property
    def owner(self) -> int:
        """Identity of the thread that trains."""
        return self._owner

    @owner.setter
    def owner(self, thread: int) -> None:
        self._owner = thread
        self.active = 0 if self._off else thread

    @property
    def off(self) -> bool:
        """Whether every wrapper only calls its original."""
        return self._off

    @off.setter
    def off(self, value: bool) -> None:
        self._off = value
        self.active = 0 if value else self._owner

    def subscribe(self, subscriber: Any) -> None:
        """Have ``subscriber(session, row)`` called after every row, until it is taken from ``subscribers``."""
        self.subscribers.append(subscriber)
        self.recorder.due = 0

    def claim_owner(self) -> bool:
        """The first thread that trains owns the session; True when that is the calling thread."""
        if self._off or self.recorder.started:
            return False
        place = self._places
        on_row = self.recorder.on_row
        self.recorder.reset()
        self.recorder.on_start, self.recorder.on_row = self._start, on_row
        self._places = place
        self.owner = threading.get_ident()
        return True

    # -- start, rows, end -----------------------------------------------------------------------------------------

    @guarded
    def _start(self) -> Any:
        """Open the recording and start the background thread; answers what receives the rows."""
        restart = facts.integer(os.environ.get("TORCHELASTIC_RESTART_COUNT")) or 0
        described = facts.process_facts(self.anchor_wall_s, restart, self.options.get("affinity_cores"))
        rank = described["rank"]
        name = f"{described['host']}-{os.getpid()}-{'x' if rank is None else rank}-{restart}.hlr"
        folder = os.path.join(self.options["run"], "processes")
        writer = FrameWriter(os.path.join(folder, name), clock=self.now_ns)
        self.writer = writer
        self.tell(described)
        for state in self._loaders.values():
            if state.facts is not None:
                self.tell(state.facts)
        for missing in self.missing_sites:
            self.tell({"kind": "health", "level": "warning", "message": f"not observed: {missing}"})
        error = os.environ.get("HOTLOOP_ATTACH_ERROR")
        if error:
            self.tell({"kind": "health", "level": "warning", "message": f"attaching failed in part: {error}"})
        if self.make_background is not None:
            self.background = self.make_background(self, writer)
            self.background.start()
        run_at_exit(self.end)
        return writer.write_row

    def now_ns(self) -> int:
        """The clock of the recording: ns since this process was armed."""
        return time.perf_counter_ns() - self.anchor_ns

    @guarded
    def tell(self, fact: dict[str, Any]) -> None:
        """Have a fact written, stamped with the time; dropped while nothing is recorded.

        The training thread only leaves it for the background thread: encoding takes time, and inside a compiled
        optimizer step Dynamo would look at every function that encoding calls.
        """
        if self.writer is None:
            return
        fact["t"] = self.now_ns()
        if self.background is not None and not self.ended and threading.get_ident() == self.owner:
            if len(self._told) < MOST_FACTS_WAITING:
                self._told.append(fact)
        else:
            self.writer.write_fact(fact)

    def tell_when_started(self, fact: dict[str, Any]) -> None:
        """As ``tell``, for facts that are known before anything is recorded."""
        if self.writer is None:
            self._pending_facts.append(fact)
        else:
            self.tell(fact)

    def write_told(self) -> None:
        """Write the facts that the training thread left; on the background thread, and at the end."""
        while self._told and self.writer is not None:
            self.writer.write_fact(self._told.popleft())

    @guarded
    def _after_row(self, row: Row[int]) -> None:
        """After a row when that is due: learn, sample what is sampled, narrow or widen the module patch."""
        recorder = self.recorder
        rows = recorder.rows
        sampled = rows < LEARNING_ROWS or rows % TOKEN_SAMPLE_ROWS == 0
        self.sampling_tokens = sampled
        if self.learning and rows >= LEARNING_ROWS:
            self.learning = False
        if rows >= MATCHED_ROWS and not self.nograd_calls and not self._same_mode_repeats:
            self.matching_inputs = False
        self._rows_looked_at += 1
        self._forwards += row[FORWARDS]
        self._backwards += row[BACKWARDS]
        if self.module_patch is not None:
            self.module_patch.after_row(rows)
        for subscriber in tuple(self.subscribers):
            subscriber(self, row)
        recorder.due = rows + 1 if sampled or self.subscribers else rows - rows % TOKEN_SAMPLE_ROWS + TOKEN_SAMPLE_ROWS

    def call_counts(self) -> dict[str, int]:
        """How often each hook was called so far, by the names of COUNTED. Forwards and backwards are extrapolated from
        the rows that were looked at: all of the first ones, later two in 16."""
        scale = self.recorder.rows / max(1, self._rows_looked_at)
        counts = {
            "batches": sum(state.batches for state in list(self._loaders.values())),
            "forwards": round(self._forwards * scale),
            "nograd_forwards": self.nograd_calls,
            "backwards": round(self._backwards * scale),
            "collectives": self.collectives,
            "checkpoints": self.checkpoints,
        }
        return {name: counts[name] for name in COUNTED}

    def steps_per_optimizer(self) -> list[int]:
        """One entry per optimizer seen so far (at least one): how many rows make a step."""
        return [1] * max(1, len(self._optimizers))

    def sharded(self) -> bool:
        """True when a model that trains holds DTensors."""
        for reference in self._models.values():
            model = reference()
            if model is not None and any(type(p.data).__name__ == "DTensor" for p in model.parameters()):
                return True
        return False

    def local_rank(self) -> int | None:
        return facts.integer(os.environ.get("LOCAL_RANK"))

    def nested_total(self) -> int:
        """Nested module calls that passed the patch so far: counted in the first rows, then extrapolated."""
        rows = self.recorder.rows
        if rows <= LEARNING_ROWS:
            return self.nested_calls
        wide = self.module_patch is None or self.module_patch.is_wide
        return int(self.nested_calls / LEARNING_ROWS * (rows if wide else LEARNING_ROWS + rows / WATCH_ROWS))

    @guarded
    def end(self) -> None:
        """At exit: the tail, how it ended, and every total once more."""
        if self.ended or self.writer is None:
            return
        self.ended = True
        self.off = True
        background = self.background
        if background is not None:
            background.stop()
        self.before_end()
        self.write_told()
        if threading.get_ident() == self.owner:
            self.recorder.close_tail()
        self.tell_totals()
        for fact in background.last_facts() if background is not None else ():
            self.tell(fact)
        self.tell(_how_it_ended(self.recorder.rows))
        self.tell_failures()
        self.writer.close()

    def tell_totals(self) -> None:
        """The facts of which only the newest counts."""
        for fact in self.totals():
            self.tell(fact)

    def tell_failures(self) -> None:
        """What went wrong in the agent itself, as health."""
        for failure, count in list(GUARD.failures.items()):
            self.tell(
                {"kind": "health", "level": "warning", "message": f"hotloop's agent failed {count} times: {failure}"}
            )

    def totals(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        by_pid = self.table.read() if self.table is not None else {}
        for state in list(self._loaders.values()):
            workers = Totals()
            for pid in state.worker_pids:
                if pid in by_pid:
                    t = by_pid[pid]
                    workers.add(t.batches, t.fetch_ns, t.fetch_cpu_ns, t.collate_ns)
            total = workers if workers.batches else state.main
            known = total.batches > 0
            found.append(
                {
                    "kind": "loader_stats",
                    "id": state.id,
                    "batches": state.batches,
                    "iterators": state.iterators,
                    "feeds_backward": state.feeds_backward,
                    "iterator_ns": state.iterator_ns,
                    "first_wait_ns": state.first_wait_ns,
                    "first_waits": state.first_waits,
                    "wait_ns": state.wait_ns,
                    "fetch_ns": total.fetch_ns if known else None,
                    "fetch_cpu_ns": total.fetch_cpu_ns if known else None,
                    "collate_ns": total.collate_ns if known else None,
                    "fetch_batches": total.batches,
                }
            )
        if self._input_stays:
            found.append({"kind": "direct_input", "stays": True})
        if self._gc_ns:
            found.append(
                {
                    "kind": "gc",
                    "count": sum(self._gc_by_generation),
                    "ns": self._gc_ns,
                    "by_generation": list(self._gc_by_generation),
                    "explicit_where": self._gc_explicit,
                }
            )
        if self.compile_used or "torch._dynamo.utils" in sys.modules:
            from .compiling import compile_facts

            fact = compile_facts(self._compile_place, self.graph_calls)
            if fact is not None:
                self.compile_used = True
                found.append(fact)
        return found

    # -- places ---------------------------------------------------------------------------------------------------

    @guarded
    def remember_place(self, target: Any) -> None:
        """Where an object was built: the user's frame that is building it now."""
        try:
            reference: weakref.ref[Any] | None = weakref.ref(target)
        except TypeError:
            reference = None
        self._places[id(target)] = (reference, caller_place(3))

    def place_of(self, target: Any) -> Place | None:
        reference, place = self._places.get(id(target), (None, None))
        return place if reference is not None and reference() is target else None

    # -- loading --------------------------------------------------------------------------------------------------

    @guarded
    def loader_built(self, loader: Any) -> None:
        self.remember_place(loader)

    def _state_of(self, loader: Any) -> LoaderState:
        key = id(loader)
        reference = self._loader_refs.get(key)
        if reference is None or reference() is not loader:
            loader_id = len(self._loader_refs)
            described = facts.loader_facts(loader, loader_id, self.place_of(loader))
            self._loader_refs[key] = weakref.ref(loader)
            self._loaders[key] = LoaderState(loader_id, described, facts.first_batch_size(loader))
            self._unknown_loaders.append(self._loaders[key])
            self.tell(described)
        return self._loaders[key]

    @guarded
    def iterator_begins(self, loader: Any) -> None:
        self._forget_peeked()
        self._last_loader = state = self._state_of(loader)
        if loader.num_workers and self.table is None:
            self.table = WorkerTable.create()
        if self._is_other(state):
            self.recorder.other_loader()

    def _forget_peeked(self) -> None:
        """Take back a batch that was only looked at: its iterator was dropped and no training forward followed."""
        taken_from, self._taken_from = self._taken_from, _nobody
        state, row, stack = self._last_loader, self.recorder.row, self.recorder.stack
        if taken_from is _nobody or taken_from() is not None or state is None or state.feeds_backward is False:
            return
        if len(stack) == 1 and stack[0] in (AFTER_INPUT, AFTER_NOGRAD) and row[BATCHES]:
            row[SAMPLES] -= min(row[SAMPLES], state.last_samples)
            row[TOKENS] = row[PADDING] = row[LONGEST] = UNKNOWN
            if state.feeds_backward:
                row[MICRO_BATCHES] -= min(row[MICRO_BATCHES], 1)
            else:
                state.pending -= min(state.pending, 1)
                state.pending_samples -= min(state.pending_samples, state.last_samples)

    def iterator_exhausted(self, state: LoaderState | None) -> None:
        """A loader has no more batches. If forwards without gradients used them, they fed no backward."""
        self._taken_from = _nobody
        burst = self.recorder.burst
        if state is None or state.feeds_backward or burst is None or not burst.forwards:
            return
        state.feeds_backward = False
        row = self.recorder.row
        row[SAMPLES] -= min(row[SAMPLES], state.pending_samples)
        state.pending = state.pending_samples = 0
        burst.other_loader = True
        if self._last_loader is state:
            self._last_loader = None

    def _is_other(self, state: LoaderState) -> bool:
        """True for a loader that does not feed backward, or has not yet while another one does."""
        return state.feeds_backward is False or (state.feeds_backward is None and self._training_loaders > 0)

    @guarded
    def iterator_created(self, loader: Any, iterator: Any, spent_ns: int) -> None:
        state = self._state_of(loader)
        try:
            self._iterators[iterator] = state
        except TypeError:  # some loaders answer a generator: its batches are counted under the loader last iterated
            self._last_loader = state
        if self.module_patch is not None and not self.module_patch.is_wide:
            self.module_patch.widen()  # another loop may begin here, around another model
            self.recorder.due = 0
        state.iterators += 1
        state.iterator_ns += spent_ns
        state.fresh = True
        for worker in getattr(iterator, "_workers", ()):
            if worker.pid is not None:
                state.worker_pids.add(worker.pid)

    @guarded
    def before_batch(self, iterator: Any) -> LoaderState | None:
        """The state of the iterator's loader; tells the recorder when that loader does not feed backward."""
        self.iterator_ref = _nobody
        self._taken_from = weakref.ref(iterator)
        state = self._iterators.get(iterator, self._last_loader)
        self._fetch_state = self.loader_state = state
        if state is not None and state.feeds_backward:
            self.iterator_ref = weakref.ref(iterator)  # from here on wrappers need not ask
        elif state is not None and self._is_other(state):
            self.recorder.other_loader()
        return state

    def after_batch(self, state: LoaderState | None, batch: Any, waited_ns: int) -> None:
        """A batch was taken by the training's loop."""
        try:
            row = self.recorder.row
            row[BATCHES] = fetched = row[BATCHES] + 1
            samples = batches.count_samples(batch)
            if state is not None:
                state.batches += 1
                state.wait_ns += waited_ns
                if state.fresh:
                    state.fresh = False
                    state.first_waits += 1
                    state.first_wait_ns += waited_ns
                self._last_loader = state
                if samples != state.whole_batch:
                    samples = self._settle_samples(state, batch, samples)
                if state.feeds_backward:
                    self.recorder.drop_empty_burst()
                    row[MICRO_BATCHES] += 1
                    if fetched == 1 and (row[SAMPLES] or self._direct_samples):
                        self._drop_direct()
                elif state.feeds_backward is None:
                    state.pending += 1
                    state.pending_samples += samples
                else:
                    return
                state.last_samples = samples
            row[SAMPLES] += samples
            if self.sampling_tokens and samples:
                self._count_tokens(batch, 0 if state is None else state.sample_dim)
        except Exception as error:
            GUARD.record("Session.after_batch", error)

    def _settle_samples(self, state: LoaderState, batch: Any, leading: int) -> int:
        """Samples of a batch whose leading dimension is not known to count them; 0 when that cannot be told.

        A loader that makes the batches says how many samples they hold, all but the last one. Where it does not say it,
        the modules inside a model that takes time first do.
        """
        if state.batch_size is None and not self._time_first:
            return leading
        known: Any = self._inner_batches if state.batch_size is None else (state.batch_size,)
        shape = batches.leading_shape(batch)
        if state.sample_dim is None:
            state.sample_dim = batches.find_sample_dim(shape, known)
            if state.sample_dim is None:
                return 0
            if state.sample_dim == 0 and state.batch_size is not None:
                state.whole_batch = state.batch_size
        count = shape[state.sample_dim]
        if state.batch_size is None or count <= state.batch_size:
            return count
        if shape[1] == state.batch_size:  # the first batches were as long as they were many
            state.sample_dim, state.whole_batch = 1, 0
            return state.batch_size
        return 0

    def _drop_direct(self) -> None:
        """The first forward of this row was of a batch that had been fetched, and counted, in the row before."""
        row = self.recorder.row
        row[SAMPLES] = self._direct_samples = 0
        row[TOKENS] = row[PADDING] = row[LONGEST] = UNKNOWN
        self._direct_tokens = None

    def _count_tokens(self, batch: Any, sample_dim: int | None) -> None:
        counted = batches.count_tokens(batch, sample_dim or 0)
        if counted is not None:
            row = self.recorder.row
            row[TOKENS] = max(0, row[TOKENS]) + counted[0]
            row[PADDING] = max(0, row[PADDING]) + counted[1]
            row[LONGEST] = max(0, row[LONGEST]) + counted[2]

    @guarded
    def batch_fetched(self, fetch_ns: int, fetch_cpu_ns: int, collate_ns: int) -> None:
        """A batch was read, here or in a worker."""
        info = torch.utils.data.get_worker_info()
        if info is not None:
            if self.table is None:
                self.table = self._find_table()
            if self.table is not None:
                self.table.add(fetch_ns, fetch_cpu_ns, collate_ns)
            return
        if threading.get_ident() != self.owner:
            return
        self._fetches += 1
        stands_for, self._fetch_gap = 1 + self._fetch_gap, 0
        if self._fetches >= TIMED_FETCHES:
            self._fetch_gap = FETCH_GAPS[self._fetches % len(FETCH_GAPS)]
            if self._fetches >= RARELY_TIMED_FETCHES:
                self._fetch_gap *= 5
            self.fetches_to_skip = self._fetch_gap
        row = self.recorder.row
        row[FETCH_NS] += fetch_ns
        row[FETCH_CPU_NS] += fetch_cpu_ns
        row[COLLATE_NS] += collate_ns
        row[FETCH_BATCHES] += 1
        if self._fetch_state is not None:
            # In the totals a batch stands for those left out before it: the first ones must not count for more.
            n = stands_for
            self._fetch_state.main.add(n, n * fetch_ns, n * fetch_cpu_ns, n * collate_ns)

    def _find_table(self) -> WorkerTable | None:
        import multiprocessing

        parent = multiprocessing.parent_process()
        return None if parent is None or parent.pid is None else WorkerTable.of_parent(parent.pid)

    # -- modules --------------------------------------------------------------------------------------------------

    def before_forward(self, module: Any, args: Any, kwargs: Any) -> int | None:
        """An outermost forward with gradients begins. Now, in ns, when the same input was already seen, else None."""
        try:
            recorder = self.recorder
            if recorder.burst is not None:
                recorder.end_burst()
            key, cls = id(module), type(module)
            if self._others.get(key) is not cls:
                if self._learners.get(key) is cls or self._meet(module, args):
                    if self._last_root() is not module:
                        self._last_root = weakref.ref(module)
                    if not recorder.row[BATCHES]:
                        self._count_direct(key, args, kwargs)
                if cls in self._ddp_classes:
                    self._count_sync(module)
            return self._seen_before(module, args, kwargs, False) if self.matching_inputs else None
        except Exception as error:
            GUARD.record("Session.before_forward", error)
            return None

    @guarded
    def before_nograd(self, module: Any, args: Any, kwargs: Any) -> int | None:
        """An outermost forward without gradients begins; its burst has begun."""
        self.roots.add(type(module))
        self.nograd_calls += 1
        self.matching_inputs = True
        return self._seen_before(module, args, kwargs, True)

    def _meet(self, module: Any, args: Any) -> bool:
        """An outermost module that was not known: whether it learns anything. Remembered by identity and class."""
        cls = type(module)
        self.roots.add(cls)
        learns = next(module.parameters(), None) is not None
        if learns:
            self.meets_model(module)
        known = self._learners if learns else self._others
        if len(known) > 1_000:
            known.clear()
        known[id(module)] = cls
        (self._others if learns else self._learners).pop(id(module), None)
        self._time_first.pop(id(module), None)
        if learns and any(getattr(part, "batch_first", None) is False for part in module.modules()):
            self._time_first[id(module)] = None
            self._note_inner_batch(module, args)
        if self._looks < MOST_LOOKS and not self.compile_used:
            self._looks += 1
            surrounding = find_running_forward(sys._getframe(2))
            if surrounding is not None:
                self.patch_forward(surrounding)
        return learns

    def _note_inner_batch(self, module: Any, args: Any) -> None:
        if getattr(module, "batch_first", None) is False and len(self._inner_batches) < 8:
            size = batches.inner_batch_size(args)
            if size is not None:
                self._inner_batches.add(size)

    def _seen_before(self, module: Any, args: Any, kwargs: Any, nograd: bool) -> int | None:
        """Now, in ns, when the module already computed the same input in this row, or in the one before for metrics."""
        tensor = None
        for value in args or kwargs.values():
            if isinstance(value, torch.Tensor):
                tensor = value
                break
        if tensor is None:
            return None
        key, row, mode, version = id(module), self.recorder.rows, module.training, 0
        seen = [entry for entry in self._seen_inputs if entry[0] == key and entry[1]() is tensor]
        if nograd and not mode and self._learners.get(key) is type(module):
            version = 0 if tensor.is_inference() else tensor._version
            self._note_evaluation(seen, row, version)
        # What every step trains on (a graph, a full batch) is no batch that comes back: a forward of it after the
        # optimizer's step looks at new weights, and one in the other mode computes something else.
        is_lasting = len({entry[3] for entry in seen if not entry[2]}) > 1
        known = (not nograd and self._is_computed_again(module, key, args, kwargs)) or any(
            was_nograd != nograd
            # A forward for metrics often comes after the optimizer's step: the previous row counts too.
            and ((seen_row == row and seen_mode == mode) if is_lasting else 0 <= row - seen_row <= int(nograd))
            for _, _, was_nograd, seen_row, seen_mode, _ in seen
        )
        if len(self._seen_inputs) >= 64:
            self._seen_inputs = [seen for seen in self._seen_inputs if row - seen[3] <= 1][-32:]
        self._seen_inputs.append((key, weakref.ref(tensor), nograd, row, mode, version))
        return time.perf_counter_ns() if known else None

    def _is_computed_again(self, module: Any, key: int, args: Any, kwargs: Any) -> bool:
        """Whether the module's forward with gradients just before had the same inputs, weights and mode.

        All inputs must be tensors that can be compared by identity, and the weights a parameter that learns and tells
        its changes by its version. With several optimizers the weights outlive the row that another one's step closed.
        """
        learns = self._learners.get(key) is type(module)
        if not learns:
            return False
        inputs = (*args, *kwargs.values())
        if not all(isinstance(value, torch.Tensor) and not value.is_inference() for value in inputs):
            return False
        weight = next((p for p in module.parameters() if p.requires_grad), None)
        if type(weight) is not torch.nn.Parameter or weight.is_inference():  # others were put in for this call
            return False
        row, optimizers_count = self.recorder.rows, len(self.recorder.optimizers)
        version = weight._version + self._updates_of(weight)
        state = (module.training, id(weight), version, *((id(t), t._version) for t in inputs))
        before = self._computed.get(key)
        stays = before is not None and before[0][3:] == state[3:]
        if not stays:
            self._confirm_metrics(key)
        # The references keep an identity from being given to another tensor meanwhile.
        self._computed[key] = (state, row, tuple(weakref.ref(t) for t in inputs), stays)
        if len(self._computed) > MOST_COMPUTED:
            self._computed.clear()
        if before is None or any(ref() is None for ref in before[2]):
            return False
        if before[0] != state:
            # The batch that the row before trained on last, with the weights of after its step: maybe for metrics.
            if row - before[1] == 1 and stays and not before[3]:
                self._maybe_metrics = (key, row, self.recorder.row[BACKWARDS], self.recorder.row[FORWARD])
            return False
        if row - before[1] > (1 if optimizers_count > 1 else 0):
            return False
        self._same_mode_repeats += 1
        if key not in self._draws:
            self._rng_before = torch.get_rng_state()
        return True

    def _updates_of(self, weight: Any) -> int:
        """How often the optimizer of a weight stepped, if it is known: a fused step leaves the version as it is."""
        owner = self._owners.get(id(weight))
        if owner is None:
            for index, (reference, _) in self._optimizers.items():
                groups = getattr(reference(), "param_groups", ())
                if any(one is weight for group in groups for one in group["params"]):
                    owner = self._owners[id(weight)] = index
                    break
            else:
                return 0
        return self.optimizer_steps[owner]

    @guarded
    def after_repeat(self, module: Any, result: Any, spent_ns: int) -> None:
        """A forward of the same input has ended. If it drew random numbers and goes backward too, it repeats nothing.

        Two passes through dropout on purpose (SimCSE, R-Drop), or two draws of a latent, are two different results.
        Only the backward can tell them from a second forward for metrics: the result's node says when it is reached.
        """
        key, before = id(module), self._rng_before
        if before is not None:
            self._rng_before = None
            if len(self._draws) > MOST_COMPUTED:
                self._draws.clear()
            self._draws[key] = not torch.equal(before, torch.get_rng_state()) or any(
                part.training and (getattr(part, "p", 0) or getattr(part, "drop_prob", 0))
                for part in module.modules()
                if "Drop" in type(part).__name__
            )
        tensor = batches.first_tensor(result)
        if self.compile_used or not self._draws.get(key) or tensor is None or tensor.grad_fn is None:
            return
        recorder, row, left = self.recorder, self.recorder.rows, [spent_ns]

        def take_back(_gradients: Any) -> None:
            if left and recorder.rows == row:
                recorder.row[REPEATED] -= 1
                recorder.row[REPEATED_NS] -= left.pop()

        tensor.grad_fn.register_prehook(take_back)

    def _confirm_metrics(self, key: int) -> None:
        """A forward of the row before's batch was for metrics when the next batch comes without a backward between."""
        row = self.recorder.row
        if self._maybe_metrics[:3] == (key, self.recorder.rows, row[BACKWARDS]):
            row[REPEATED] += 1
            row[REPEATED_NS] += row[FORWARD] - self._maybe_metrics[3]
            self._same_mode_repeats += 1
        self._maybe_metrics = (0, UNKNOWN, 0, 0)

    def _note_evaluation(
        self, seen: list[tuple[int, weakref.ref[Any], bool, int, bool, int]], row: int, v: int
    ) -> None:
        """The model that is trained, in eval mode: on data that stays the same, what it answers is only looked at."""
        burst = self.recorder.burst
        if burst is None:
            return
        for _, _, was_nograd, seen_row, seen_mode, version in reversed(seen):
            if was_nograd and seen_row < row:
                burst.own_data += not seen_mode and version == v
                return

    def _count_direct(self, key: int, args: Any, kwargs: Any) -> None:
        """Samples and tokens of a training without a DataLoader: the largest model input before each backward."""
        batch = args if args else kwargs
        sample_dim: int | None = 0
        if key in self._time_first:
            sample_dim = self._time_first[key]
            if sample_dim is None:
                self._undecided = (key, batches.leading_shape(batch))
                return
            if sample_dim == UNKNOWN:
                return
        samples = batches.leading_shape(batch)[1] if sample_dim else batches.count_samples(batch)
        self._direct_samples = max(self._direct_samples, samples)
        if self.sampling_tokens:
            self._look_whether_input_stays(batch)
            if self._direct_tokens is None:
                self._direct_tokens = batches.count_tokens(batch, sample_dim or 0)

    def _look_whether_input_stays(self, batch: Any) -> None:
        """A tensor that an earlier row trained on too is no batch of a larger set: there is no larger one to take."""
        tensor, (seen, row) = batches.first_tensor(batch), self._direct_input
        if tensor is None:
            return
        if seen() is tensor and row < self.recorder.rows:
            self._input_stays = True
        elif seen() is not tensor:
            self._direct_input = (weakref.ref(tensor), self.recorder.rows)

    def _decide_sample_dim(self, key: int, shape: tuple[int, int]) -> None:
        """The forward is over: the modules inside have shown how many samples they got, unless they were not seen."""
        self._undecided = None
        dim = batches.find_sample_dim(shape, self._inner_batches)
        if dim is not None:
            self._direct_samples = max(self._direct_samples, shape[dim])
        elif not self.learning:
            dim = UNKNOWN
        self._time_first[key] = dim

    def _add_direct(self) -> None:
        row = self.recorder.row
        row[SAMPLES] += self._direct_samples
        self._direct_samples = 0
        counted, self._direct_tokens = self._direct_tokens, None
        if counted is not None:
            row[TOKENS] = max(0, row[TOKENS]) + counted[0]
            row[PADDING] = max(0, row[PADDING]) + counted[1]
            row[LONGEST] = max(0, row[LONGEST]) + counted[2]

    def _count_sync(self, module: Any) -> None:
        row = self.recorder.row
        keeps_local = getattr(vars(module).get("forward"), "keeps_local", None)  # set by an applied technique
        synced = module.require_backward_grad_sync and not (keeps_local is not None and keeps_local())
        row[SYNCED] = max(0, row[SYNCED]) + bool(synced)

    @guarded
    def nested_call(self, module: Any, args: Any) -> None:
        """In the first rows only: what holds inside the outermost module."""
        self.nested_calls += 1
        if self._time_first:
            self._note_inner_batch(module, args)
        if "autocast" not in self._facts_told:
            self._look_for_autocast(module)
        if type(module) in self._ddp_classes:
            self._count_sync(module)

    def _look_for_autocast(self, module: Any) -> None:
        for device in ("cuda", "cpu"):
            if torch.is_autocast_enabled(device):
                self._facts_told.add("autocast")
                dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
                self._pending_facts.append({"kind": "autocast", "dtype": dtype, "device": device})
                self.flush_pending()

    def flush_pending(self) -> None:
        """Facts noticed before the recording began are told as soon as it has."""
        if self.writer is not None:
            pending = self._pending_facts
            while pending:
                self.tell(pending.pop(0))

    def before_backward(self) -> None:
        """The outermost backward begins: what fed it is known now."""
        try:
            recorder = self.recorder
            if recorder.burst is not None:
                recorder.end_burst()
            if self.learning and self._last_root is _nobody:
                self._look_for_models()
            if self._undecided is not None:
                self._decide_sample_dim(*self._undecided)
            if self._direct_samples:
                self._add_direct()
            state = self._last_loader
            if state is not None and not state.feeds_backward and recorder.row[BATCHES]:
                self._found_feeding(state)
            if self._unknown_loaders:
                self._sort_out_loaders(state)
            if self._last_root is not self._told_root:
                self._tell_root()
            if self.learning and "autocast" not in self._facts_told:
                self._look_for_autocast(self._last_root())
            if self._pending_facts and self.writer is not None:
                self.flush_pending()
        except Exception as error:
            GUARD.record("Session.before_backward", error)

    def _look_for_models(self) -> None:
        """A backward, and no module with parameters was called: if there is one, its forward is called directly."""
        if self._looks < MOST_LOOKS and not self.compile_used:
            self._looks += 1
            for cls in find_models_in_sight(sys._getframe(3)):
                self.patch_forward(cls)

    def _found_feeding(self, state: LoaderState) -> None:
        """The loader that gave the last batch feeds backward."""
        state.feeds_backward = True
        self._training_loaders += 1
        self.recorder.row[MICRO_BATCHES] += state.pending
        state.pending = state.pending_samples = 0
        self.iterator_ref = _nobody

    def _sort_out_loaders(self, feeding: LoaderState | None) -> None:
        for other in self._unknown_loaders:
            if other is not feeding and other.batches and other.feeds_backward is None:
                other.feeds_backward = False
        self._unknown_loaders = [s for s in self._unknown_loaders if s.feeds_backward is None]

    def _tell_root(self) -> None:
        """The last outermost module with parameters is another one than at the backward before."""
        self._told_root = self._last_root
        root = self._last_root()
        known = self._models.get(id(root))
        if root is not None and (known is None or known() is not root):
            self._models[id(root)] = weakref.ref(root)
            self._watch_device(root)
            self._pending_facts.append(facts.model_facts(root, self._models_count))
            self._models_count += 1

    def _watch_device(self, root: Any) -> None:
        """Phases are timed on the device of the first model that lives on one."""
        parameter = next(root.parameters(), None)
        if self.device_index is None and parameter is not None and parameter.device.type == "cuda":
            self.device_index = parameter.device.index
            time_device(self.recorder, cuda_device_timer(self.device_index, self.tell, self.captures))

    # -- optimizers, scaler, DDP, compile, gc ---------------------------------------------------------------------

    def optimizer_seen(self, optimizer: Any) -> int:
        """An optimizer stepped that was not known; its number."""
        index = self.recorder.optimizers[id(optimizer)] = len(self.recorder.optimizers)
        self._owners.clear()
        self._describe_optimizer(optimizer, index)
        return index

    @guarded
    def _describe_optimizer(self, optimizer: Any, index: int) -> None:
        self._optimizers[index] = (weakref.ref(optimizer), 0)
        self._pending_facts.append(facts.optimizer_facts(optimizer, index, self.place_of(optimizer), 0))

    @guarded
    def scaler_built(self, scaler: Any) -> None:
        enabled = bool(scaler.is_enabled())
        if enabled:
            place = caller_place(3)
            device = getattr(scaler, "_device", None)
            self._pending_facts.append({"kind": "scaler", "enabled": enabled, "where": place, "device": device})

    @guarded
    def checkpointing_seen(self) -> None:
        if "checkpointing" not in self._facts_told:
            self._facts_told.add("checkpointing")
            self._pending_facts.append({"kind": "checkpointing", "where": caller_place(3), "reentrant": None})

    @guarded
    def ddp_built(self, ddp: Any) -> None:
        self._ddp_classes.add(type(ddp))
        self.subscribe(self.watch_ddp(ddp, caller_place(3)))

    @guarded
    def compile_called(self) -> None:
        self.compile_used = True
        self.recorder.due = 0
        if self._compile_place is None:
            self._compile_place = caller_place(3)

    def compile_began(self) -> None:
        self._compile_started_ns = time.perf_counter_ns()
        self.recorder.due = 0  # the module patch has to be as it was from the next row on

    def compile_ended(self) -> None:
        started_ns, self._compile_started_ns = self._compile_started_ns, 0
        if started_ns:
            self.recorder.row[COMPILE_NS] += time.perf_counter_ns() - started_ns
            self.recorder.row[COMPILES] += 1

    def garbage_collected(self, duration_ns: int, generation: int) -> None:
        row = self.recorder.row
        row[GC_NS] += duration_ns
        row[GC_COUNT] += 1
        self._gc_ns += duration_ns
        if 0 <= generation < 3:
            self._gc_by_generation[generation] += 1
        if generation == 2 and self._gc_explicit is None:
            self._gc_explicit = explicit_collection(sys._getframe(1).f_back)


def _nobody() -> None:
    """In the place of a weak reference while there is nothing to refer to."""


def _patch_nothing(cls: type) -> None:
    """Until attach says how optimizer classes are patched."""


def _meet_nobody(model: Any) -> Any:
    """Without a strategy models stay what they are."""


def _end_nothing() -> None:
    """Without a strategy there is nothing to say at the end."""


def _watch_nothing(ddp: Any, where: Place | None) -> Any:
    """Until attach says how DDP is watched."""
    return lambda session, row: None


def explicit_collection(frame: Any) -> Place | None:
    """The user's line when it calls gc.collect itself; None when the collector started by itself there."""
    if frame is None or "collect" not in frame.f_code.co_names or not is_user_code(frame.f_code):
        return None
    return place_of(frame)


def _how_it_ended(rows: int) -> dict[str, Any]:
    """From the interpreter's own note of an uncaught exception (set before it is printed)."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    kind = getattr(sys, "last_type", None) or (type(error) if error is not None else None)
    ended = "completed"
    if kind is not None and not (isinstance(kind, type) and issubclass(kind, KeyboardInterrupt)):
        text = str(error).lower()
        out_of_memory = kind.__name__ in ("OutOfMemoryError", "MemoryError") or (
            kind is RuntimeError and ("out of memory" in text or "can't allocate memory" in text)
        )
        ended = "oom" if out_of_memory else "exception"
    elif kind is not None:
        ended = "signal"
    return {"kind": "end", "ended": ended, "exception": kind.__name__ if kind is not None else None, "steps": rows}
