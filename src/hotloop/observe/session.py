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

from hotloop.core.recording import FIELD

from . import batches, facts
from .at_exit import run_at_exit
from .compiling import GraphCalls, compile_facts
from .counting import Counting
from .device_events import CaptureWatch, cuda_device_timer, time_device
from .direct_forward import find_models_in_sight, find_running_forward
from .guard import GUARD, guarded
from .loaders import Loaders
from .memory_end import describe_memory_end, is_out_of_memory, uncaught_error
from .nvtx import make_recorder
from .places import Place, caller_place, is_user_code, place_of
from .recorder import AFTER_BACKWARD, AFTER_INPUT, COUNTED, END, OTHER, START, Recorder, Row
from .repeats import Repeats
from .writer import FrameWriter

BATCHES = FIELD["batches"]
FORWARDS = FIELD["forwards"]
BACKWARDS = FIELD["backwards"]
SYNCED = FIELD["synced_backwards"]
GC_NS = FIELD["gc_ns"]
GC_COUNT = FIELD["gc_count"]
COMPILE_NS = FIELD["compile_ns"]
COMPILES = FIELD["compiles"]
GAPS_BEFORE_FORWARD = (OTHER, AFTER_INPUT, AFTER_BACKWARD)
"""Where a loop makes its batch ready: before its first forward, after a batch came, between two micro-batches."""

LEARNING_ROWS = 4
"""For so many rows every nested module call is looked at (autocast, nested DDP)."""
LOOK_ROWS = 16
"""After the first rows, what happens after a row only when it is due happens after every so many'th."""
CPU_MASKS = ((4_000_000, 31), (20_000_000, 7))
"""In rows shorter than so many ns the process's CPU time is read in every 32nd or every eighth."""
MATCHED_ROWS = 64
"""For so many rows inputs of forwards are remembered; later only if there have been forwards without
gradients, or some that repeated another one."""
MOST_LOOKS = 32
"""So often the frames above are searched for a model whose forward is called directly."""
MOST_FACTS_WAITING = 1_000
WATCH_ROWS = 64
"""Once the root class is known, nested modules are watched again in every so many'th row, later less often."""
MANY_NESTED_CALLS = 24
"""Fewer nested module calls a row are not worth narrowing the patch for."""


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
        "_pending_facts",
        "_sharded_groups",
        "active",
        "counting",
        "last_root",
        "learners",
        "learning",
        "loading",
        "matching_inputs",
        "newcomer",
        "optimizer_steps",
        "others",
        "plain_forwards",
        "preparers",
        "preparing",
        "recorded_root",
        "recorder",
        "repeats",
    )

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.recorder: Recorder = make_recorder(options)
        self.anchor_ns = time.perf_counter_ns()
        self.anchor_wall_s = time.time()
        self.recorder.anchor_ns = self.anchor_ns
        self.counting = Counting(self.recorder)
        self.loading = Loaders(
            self.recorder,
            self.counting,
            record=self.record,
            place_of=self.place_of,
            is_owner=self._is_owner,
            widen=self._widen_patch,
        )
        self.repeats = Repeats(self.recorder, self._updates_of)
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
        self.loading.reset()
        self.counting.reset()
        self.repeats.reset()
        self._off = False
        self.owner = threading.get_ident()
        self.device_index: int | None = None
        self.learning = True
        self.in_recompute = False
        self.writer: FrameWriter | None = None
        self.background: Any = None
        self.ended = False
        self._places: dict[int, tuple[weakref.ref[Any] | None, Place | None]] = {}
        self._models: dict[int, weakref.ref[Any]] = {}
        self._models_count = 0
        self.last_root: Callable[[], Any] = _nobody
        """The last outermost module with parameters."""
        self.recorded_root: Callable[[], Any] = _nobody
        """The one of the last backward, of which a fact was told."""
        self.learners: dict[int, type] = {}
        """Class of every outermost module with parameters, by identity."""
        self.others: dict[int, type] = {}
        """The same of those without (loss functions are modules too)."""
        self.newcomer: Any = None
        """A module that learns nothing, in its first call: what that gives says whether it prepares batches."""
        self.preparers: dict[int, type] = {}
        """Modules that learn nothing and take and give tensors without gradients ahead of the model: part of the loop's
        own code. By identity, with the class."""
        self.preparing = False
        self.matching_inputs = True
        self.plain_forwards = False
        """Whether nothing has to be found out about forwards with gradients of modules that are known."""
        self._ddp_classes: set[type] = set()
        self._sharded_groups: dict[type, weakref.ref[Any]] = {}
        self._pending_facts: list[dict[str, Any]] = []
        self._waiting_facts: deque[dict[str, Any]] = deque()
        self._looks = 0
        self._optimizers: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.optimizer_steps: defaultdict[int, int] = defaultdict(int)
        """Completed steps of every optimizer, by its number; not counted while forwards are plain."""
        self._owners: dict[int, int] = {}
        """The number of the optimizer that updates a weight, by the weight's identity."""
        self._recorded_once: set[str] = set()
        self._compile_place: Place | None = None
        self.compile_used = False
        self._gc_by_generation = [0, 0, 0]
        self._gc_ns = 0
        self._gc_explicit: Place | None = None
        self._compile_started_ns = 0
        self.graph_calls = GraphCalls()
        self.subscribers: list[Any] = []
        self.nested_calls = 0
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

    def _is_owner(self) -> bool:
        return threading.get_ident() == self._owner

    def _widen_patch(self) -> bool:
        """Have nested modules watched again; True when they were not."""
        patch = self.module_patch
        if patch is None or patch.is_wide:
            return False
        patch.widen()
        return True

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
        self.record(described)
        for state in self.loading.states.values():
            if state.facts is not None:
                self.record(state.facts)
        for missing in self.missing_sites:
            self.record({"kind": "health", "level": "warning", "message": f"not observed: {missing}"})
        error = os.environ.get("HOTLOOP_ATTACH_ERROR")
        if error:
            self.record(
                {"kind": "health", "level": "warning", "message": f"part of the instrumentation failed: {error}"}
            )
        if self.make_background is not None:
            self.background = self.make_background(self, writer)
            self.background.start()
        run_at_exit(self.end)
        return writer.write_row

    def now_ns(self) -> int:
        """The clock of the recording: ns since this process was armed."""
        return time.perf_counter_ns() - self.anchor_ns

    @guarded
    def record(self, fact: dict[str, Any]) -> None:
        """Have a fact written, stamped with the time; dropped while nothing is recorded.

        The training thread only leaves it for the background thread: encoding takes time, and inside a compiled
        optimizer step Dynamo would look at every function that encoding calls.
        """
        if self.writer is None:
            return
        fact["t"] = self.now_ns()
        if self.background is not None and not self.ended and threading.get_ident() == self.owner:
            if len(self._waiting_facts) < MOST_FACTS_WAITING:
                self._waiting_facts.append(fact)
        else:
            self.writer.write_fact(fact)

    def record_when_started(self, fact: dict[str, Any]) -> None:
        """As ``record``, for facts that are known before anything is recorded."""
        if self.writer is None:
            self._pending_facts.append(fact)
        else:
            self.record(fact)

    def write_waiting(self) -> None:
        """Write the facts that the training thread left; on the background thread, and at the end."""
        while self._waiting_facts and self.writer is not None:
            self.writer.write_fact(self._waiting_facts.popleft())

    @guarded
    def _after_row(self, row: Row[int]) -> None:
        """After a row when that is due: learn, narrow or widen the module patch."""
        recorder = self.recorder
        rows = recorder.rows
        if self.learning and rows >= LEARNING_ROWS:
            self.learning = False
        if rows >= MATCHED_ROWS and not self.nograd_calls and not self.repeats.same_mode_count:
            self.matching_inputs = False
        self._rows_looked_at += 1
        self._forwards += row[FORWARDS]
        self._backwards += row[BACKWARDS]
        patch = self.module_patch
        if patch is not None:
            patch.after_row(rows)
        for subscriber in tuple(self.subscribers):
            subscriber(self, row)
        if self._pending_facts:
            self.flush_pending()
        self.plain_forwards = not (self.matching_inputs or self._ddp_classes or self.preparers)
        recorder.cpu_mask = next((mask for below_ns, mask in CPU_MASKS if row[END] - row[START] < below_ns), 0)
        recorder.quick = not (
            self.learning
            or self.loading.unknown
            or self.counting.undecided is not None
            or recorder.burst is not None
            or type(recorder) is not Recorder
            or not recorder.seen_optimizer
        )
        is_next_due = rows < LEARNING_ROWS or self.subscribers or (patch is not None and patch.is_passing)
        recorder.due = rows + 1 if is_next_due else rows - rows % LOOK_ROWS + LOOK_ROWS

    def call_counts(self) -> dict[str, int]:
        """How often each hook was called so far, by the names of COUNTED. Forwards and backwards are extrapolated from
        the rows that were looked at: all of the first ones, later one in 16."""
        scale = self.recorder.rows / max(1, self._rows_looked_at)
        counts = {
            "batches": sum(state.batches for state in list(self.loading.states.values())),
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
        rows, patch = self.recorder.rows, self.module_patch
        if rows <= LEARNING_ROWS:
            return self.nested_calls
        watched = rows if patch is None or patch.is_wide else LEARNING_ROWS + patch.widened_count
        return int(self.nested_calls / LEARNING_ROWS * watched)

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
        self.write_waiting()
        if threading.get_ident() == self.owner:
            self.recorder.close_tail()
        self.record_totals()
        for fact in background.last_facts() if background is not None else ():
            self.record(fact)
        self._record_memory_end()
        self.record(_how_it_ended(self.recorder.rows))
        self.record_failures()
        self.writer.close()

    @guarded
    def end_without_a_step(self) -> None:
        """At exit: of a process that ran out of memory before its first step, a recording that says so."""
        uncaught = uncaught_error()
        if self.writer is not None or self.off or uncaught is None or not is_out_of_memory(*uncaught):
            return
        self.make_background = None  # no thread can be started any more
        self._start()
        self.end()

    @guarded
    def _record_memory_end(self) -> None:
        fact = describe_memory_end(*self.trained_objects())
        if fact is not None:
            self.record(fact)

    def trained_objects(self) -> tuple[list[Any], list[Any]]:
        """The optimizers and the models seen so far; None in the place of one that is gone."""
        models = [one() for one in list(self._models.values())]
        return [one() for one, _ in list(self._optimizers.values())], [*models, self.last_root()]

    def record_totals(self) -> None:
        """The facts of which only the newest counts."""
        for fact in self.totals():
            self.record(fact)

    def record_failures(self) -> None:
        """What went wrong in the agent itself, as health."""
        for failure, count in list(GUARD.failures.items()):
            self.record(
                {"kind": "health", "level": "warning", "message": f"hotloop's agent failed {count} times: {failure}"}
            )

    def totals(self) -> list[dict[str, Any]]:
        """The facts of which only the newest counts: loaders, collections, compilation."""
        found = self.loading.totals()
        if self.counting.input_stays:
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

    # -- modules --------------------------------------------------------------------------------------------------

    def before_forward(self, module: Any, args: Any, kwargs: Any) -> int | None:
        """An outermost forward with gradients begins. Now, in ns, when the same input was already seen, else None."""
        try:
            recorder = self.recorder
            if recorder.burst is not None:
                recorder.end_burst()
            key, cls = id(module), type(module)
            if self.others.get(key) is not cls:
                if self.learners.get(key) is cls or self._meet(module, args):
                    if self.last_root() is not module:
                        self.last_root = weakref.ref(module)
                    if not recorder.row[BATCHES]:
                        self.counting.count_direct(key, args, kwargs)
                if cls in self._ddp_classes:
                    self._count_sync(module)
            if self.matching_inputs:
                return self.repeats.look(module, args, kwargs, False, self.learners.get(key) is cls)
            return None
        except Exception as error:
            GUARD.record("Session.before_forward", error)
            return None

    @guarded
    def after_repeat(self, module: Any, result: Any, spent_ns: int) -> None:
        if not self.compile_used:
            self.repeats.end(module, result, spent_ns)

    @guarded
    def before_nograd(self, module: Any, args: Any, kwargs: Any) -> int | None:
        """An outermost forward without gradients begins; its burst has begun."""
        self.roots.add(type(module))
        self.nograd_calls += 1
        self.matching_inputs = True
        learns = self.learners.get(id(module)) is type(module)
        if not learns and self.others.get(id(module)) is not type(module) and next(module.parameters(), None) is None:
            self.others[id(module)] = type(module)
            self.newcomer = module
        return self.repeats.look(module, args, kwargs, True, learns)

    @guarded
    def after_newcomer(self, args: Any, kwargs: Any, result: Any, gap: int) -> None:
        """A module that learns nothing was called for the first time, in a gap of the loop.

        A criterion takes what the model gave, and a model that keeps its weights in plain tensors gives what needs
        gradients. What neither takes nor gives such tensors, before the model has computed, prepares the batch.
        """
        module, self.newcomer = self.newcomer, None
        given = batches.first_tensor(result)
        if gap not in GAPS_BEFORE_FORWARD or given is None or given.requires_grad or _hides_a_module(module):
            return
        values = (*args, *kwargs.values(), batches.first_tensor(args))
        if not any(isinstance(value, torch.Tensor) and value.requires_grad for value in values):
            if len(self.preparers) > 1_000:
                self.preparers.clear()
            self.preparers[id(module)] = type(module)
            self.plain_forwards = False

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

    def _meet(self, module: Any, args: Any) -> bool:
        """An outermost module that was not known: whether it learns anything. Remembered by identity and class."""
        cls = type(module)
        self.roots.add(cls)
        learns = next(module.parameters(), None) is not None
        if learns:
            self.meets_model(module)
        known = self.learners if learns else self.others
        if len(known) > 1_000:
            known.clear()
        known[id(module)] = cls
        (self.others if learns else self.learners).pop(id(module), None)
        self.preparers.pop(id(module), None)
        if not learns:
            self.newcomer = module
        if learns:
            self.counting.meet(module, args)
            self._look_for_sharding(module)
        if self._looks < MOST_LOOKS and not self.compile_used:
            self._looks += 1
            surrounding = find_running_forward(sys._getframe(2))
            if surrounding is not None:
                self.patch_forward(surrounding)
        return learns

    def _look_for_sharding(self, module: Any) -> None:
        """FSDP2 changes a module's class; where the gradients of its first group go, counts like DDP's flag."""
        group = facts.sharded_group(module) if "torch.distributed.fsdp" in sys.modules else None
        if group is not None:
            self._sharded_groups[type(module)] = weakref.ref(group)
            self._ddp_classes.add(type(module))
            self.plain_forwards = False

    def _count_sync(self, module: Any) -> None:
        row = self.recorder.row
        if (sharded := self._sharded_groups.get(type(module))) is not None:
            group = sharded()
            row[SYNCED] = max(0, row[SYNCED]) + (group is not None and group.reduce_grads)
            return
        keeps_local = getattr(vars(module).get("forward"), "keeps_local", None)  # set by an applied technique
        synced = module.require_backward_grad_sync and not (keeps_local is not None and keeps_local())
        row[SYNCED] = max(0, row[SYNCED]) + bool(synced)

    @guarded
    def nested_call(self, module: Any, args: Any) -> None:
        """In the first rows only: what holds inside the outermost module."""
        self.nested_calls += 1
        if self.counting.time_first:
            self.counting.note_inner_batch(module, args)
        if "autocast" not in self._recorded_once:
            self._look_for_autocast(module)
        if type(module) in self._ddp_classes:
            self._count_sync(module)

    def _look_for_autocast(self, module: Any) -> None:
        for device in ("cuda", "cpu"):
            if torch.is_autocast_enabled(device):
                self._recorded_once.add("autocast")
                dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
                self._pending_facts.append({"kind": "autocast", "dtype": dtype, "device": device})
                self.flush_pending()

    def flush_pending(self) -> None:
        """Facts noticed before the recording began are told as soon as it has."""
        if self.writer is not None:
            pending = self._pending_facts
            while pending:
                self.record(pending.pop(0))

    def before_backward(self) -> None:
        """The outermost backward begins: what fed it is known now."""
        try:
            recorder, counting, loading = self.recorder, self.counting, self.loading
            if recorder.burst is not None:
                recorder.end_burst()
            if self.learning and self.last_root is _nobody:
                self._look_for_models()
            if counting.undecided is not None:
                counting.decide_sample_dim(self.learning)
            if counting.direct_samples:
                counting.add_direct()
            state = loading.last_state
            if state is not None and not state.feeds_backward and recorder.row[BATCHES]:
                loading.found_feeding(state)
            if loading.unknown:
                loading.sort_out(state)
            if self.last_root is not self.recorded_root:
                self._record_root()
            if self.learning and "autocast" not in self._recorded_once:
                self._look_for_autocast(self.last_root())
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

    def _record_root(self) -> None:
        """The last outermost module with parameters is another one than at the backward before."""
        self.recorded_root = self.last_root
        root = self.last_root()
        known = self._models.get(id(root))
        if root is not None and (known is None or known() is not root):
            self._models[id(root)] = weakref.ref(root)
            self._watch_device(root)
            self._pending_facts.append(facts.model_facts(root, self._models_count))
            self._models_count += 1

    def _watch_device(self, root: Any) -> None:
        """Memory is read of the first model's device; phases are timed where that is one of CUDA or ROCm."""
        parameter = next(root.parameters(), None)
        if self.device_index is not None or parameter is None or parameter.device.type == "cpu":
            return
        self.device_index = parameter.device.index
        if self.device_index is not None and parameter.device.type == "cuda":
            time_device(self.recorder, cuda_device_timer(self.device_index, self.record, self.captures))

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
        if "checkpointing" not in self._recorded_once:
            self._recorded_once.add("checkpointing")
            self._pending_facts.append({"kind": "checkpointing", "where": caller_place(3), "reentrant": None})

    @guarded
    def ddp_built(self, ddp: Any) -> None:
        self._ddp_classes.add(type(ddp))
        self.plain_forwards = False
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


def _hides_a_module(module: Any) -> bool:
    """A teacher kept in a list, so that its weights do not register: no preparation."""
    kept = (value for value in vars(module).values() if isinstance(value, (list, tuple)))
    return any(isinstance(one, torch.nn.Module) for values in kept for one in values)


def _watch_nothing(ddp: Any, where: Place | None) -> Any:
    """Until attach says how DDP is watched."""
    return lambda session, row: None


def explicit_collection(frame: Any) -> Place | None:
    """The user's line when it calls gc.collect itself; None when the collector started by itself there."""
    if frame is None or "collect" not in frame.f_code.co_names or not is_user_code(frame.f_code):
        return None
    return place_of(frame)


def _how_it_ended(rows: int) -> dict[str, Any]:
    """From the interpreter's own note of an uncaught exception."""
    uncaught = uncaught_error()
    if uncaught is None:
        ended = "completed"
    elif issubclass(uncaught[0], KeyboardInterrupt):
        ended = "signal"
    else:
        ended = "oom" if is_out_of_memory(*uncaught) else "exception"
    return {"kind": "end", "ended": ended, "exception": uncaught[0].__name__ if uncaught else None, "steps": rows}
