"""The state of one training process while it is observed: identities, flags, and the memory that events go to.

No object of the training is kept, not even by a weak reference: a thing is known again by its address, its type's, and
that of a dictionary of its own. Its facts are read once, when it is first met.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident
from collections.abc import Callable
from random import Random
from typing import Any

import torch

from hotloop.core.events import (
    END,
    EVENT_NS,
    FIRST_TIME,
    FLAG,
    FORWARD_IN,
    GRAD,
    HOW_COMPLETED,
    HOW_EXCEPTION,
    HOW_INTERRUPTED,
    INNER_BATCH,
    LEARNS,
    NEW_WEIGHTS,
    OWNER,
    RESTED,
    SAME_WEIGHTS,
    SKIPPED,
    SYNC_KNOWN,
    SYNCED,
    TRAINING,
)

from . import facts, inputs, objects
from .compiling import compile_facts
from .draws import random_states
from .guard import GUARD, guarded, undispatched
from .inputs import dict_of, has_plain_keys, key_of
from .memory_end import describe_memory_end, is_out_of_memory, uncaught_error
from .places import caller_place, is_user_code, place_of
from .readings import device_memory
from .ring import Ring
from .stack_access import current_thread_state, describe_access

LEARNING_BACKWARDS = 4
"""Until this many backwards have ended, modules inside the outermost one are looked at (autocast, batch sizes)."""
MOST_KNOWN = 1_000
"""Objects of a kind that are known by their address; then all are forgotten."""
MOST_TOLD = 256
"""Models, loaders and optimizers whose facts are reported; later ones only cause events."""
WATCHED_DRAWS = 4
BUDGET_RATIO = 0.01
"""How much of the time noting events may cost."""
FULL_STEPS, MOST_RESTED, WEIGHED_STEPS = 256, 64, 63
"""The first steps are all timed; later at most a limited number pass between two timed ones, weighed every 64th."""
FULL_EVENTS, WEIGHED_EVENTS, FEWEST_STEPS = 8_192, 4_096, 32
"""A step of hundreds of forwards is weighed sooner: after this many events in all and since the last time, once enough
steps were timed."""
FULL_FORWARDS, SKIPPED_FORWARDS = 512, 15
"""After this many forwards without gradients in one step, one in sixteen is timed."""
MATCHED_STEPS = 64
"""In this many first steps, inputs are always identified."""
MOST_IDENTIFIED = 32
"""Inputs of this many forwards without gradients between two steps are identified: rollouts have thousands."""
SLOW_NS, FAST_NS = 2_000_000_000, 250_000_000
"""The least time between two looks at what torch itself counts (compilation, a device's memory, DDP)."""
HELD_STEPS = 3
"""After this many steps of an optimizer, its state exists."""
FIRST_LOOK = 1 + HELD_STEPS
DDP_LOOKS, DDP_EVERY = 12, 100
"""Torch itself times DDP's first ten iterations, and then one in a hundred."""

_module_dict = torch.nn.Module.__dict__["__dict__"].__get__
_grad_mode = torch.is_grad_enabled
_clock = time.perf_counter_ns
_draw = Random(0).random


class Agent:
    """``owner`` is the thread whose calls are noted: 0 while there is none."""

    __slots__ = (
        "_anomaly_told",
        "_autocast_told",
        "_checkpointing_told",
        "_collected_told",
        "_compile_told",
        "_copier",
        "_ddp_iteration",
        "_ddp_looks",
        "_look_ns",
        "_models_told",
        "_parallel",
        "_started_told",
        "anchor_wall_s",
        "backward",
        "backwards",
        "compile_used",
        "compiling",
        "device_index",
        "due",
        "fewest_nograd",
        "forwards",
        "fulfill",
        "heard",
        "inside",
        "is_single",
        "learning",
        "loaders",
        "loaders_told",
        "loading",
        "may_rest",
        "meets_model",
        "missing",
        "modules",
        "muted",
        "next_look_ns",
        "notes_fetches",
        "optimizers",
        "optimizers_told",
        "options",
        "owner",
        "parallel_paths",
        "pending",
        "phase",
        "rest_from",
        "rest_left",
        "resting",
        "rests_for",
        "ring",
        "session",
        "skips",
        "started",
        "steps",
        "table_rows",
        "time_on_device",
        "usual_nograd",
        "weigh_from",
        "weighed_at",
        "weights",
        "without_gradients",
    )  # fmt: skip

    def __init__(self, options: dict[str, Any], ring: Ring) -> None:
        self.options, self.ring = options, ring
        self.anchor_wall_s = time.time()
        self.missing: list[str] = []
        self.pending: list[dict[str, Any]] = []
        self.session: Any = None
        """The replay of the events in this process, if requested (observe/local.py)."""
        self.time_on_device: Callable[[Agent, int], None] | None = None
        """Called with the index of the device of the first model on one, where a device can be timed."""
        self.fulfill: Callable[[Agent, int], None] | None = None
        """Called with a request from outside (observe/requests.py)."""
        self.meets_model: Callable[[Any], Any] | None = None
        """Called with every outermost module with parameters, before its first forward."""
        self.begin()

    def begin(self) -> None:
        """The state of a process that has not trained yet."""
        self.owner = get_ident()
        self.inside = self.backward = self.loading = self.phase = self.started = False
        self.learning = self.notes_fetches = True
        self.compiling = False
        """Whether the thread that trains compiles: backwards in it are traced, and settings are the compiler's."""
        self.due = True
        self.backwards = self.without_gradients = self.forwards = 0
        self.table_rows = 0
        """Rows that modules inside the outermost one looked up in tables, until LEARNING_BACKWARDS are over."""
        self.is_single = True
        """Whether no forward can repeat another one: there is one in each step, and none without gradients."""
        self.resting = False
        """Whether the steps that pass are only counted."""
        self.may_rest = True
        self.muted = False
        """Whether steps are only counted until somebody asks for more (observe/requests.py)."""
        self.heard = 0
        """The newest request from outside that was looked at."""
        self.steps = self.rests_for = self.rest_left = self.rest_from = self.skips = 0
        self.weighed_at, self.weigh_from = (0, 0), WEIGHED_EVENTS
        self.fewest_nograd, self.usual_nograd = MOST_KNOWN, 0
        """Forwards without gradients of each step since the last weighing; this many do not wake hooks that rest."""
        self.modules: dict[int, tuple[int, int, int, bool]] = {}
        self.loaders: dict[int, tuple[int, int]] = {}
        self.optimizers: dict[int, int] = {}
        """Steps until an optimizer's state is looked at; 0 once that is done."""
        self._parallel: dict[int, int] = {}
        self.parallel_paths: dict[int, tuple[str, ...]] = {}
        self.weights: dict[int, tuple[tuple[str, ...] | None, int | None]] = {}
        """By module: where its first trainable parameter is, and its version at the last forward with gradients."""
        self._models_told = self.loaders_told = self.optimizers_told = 0
        self._anomaly_told = self._autocast_told = self._checkpointing_told = self._compile_told = (
            self._collected_told
        ) = False
        self._started_told = self.compile_used = False
        self.next_look_ns, self._look_ns = 0, FAST_NS
        self._ddp_looks, self._ddp_iteration = 0, -1
        self.device_index: int | None = None
        self._copier = inputs.Copier(self.ring)

    def reset_after_fork(self) -> None:
        """In a forked child: another memory, and a process that has not trained."""
        self.ring.begin_in_child()
        if self.session is not None:
            self.session.reset_after_fork()
        self.begin()

    def claim(self) -> bool:
        """The first thread that trains is observed; True when that is the calling thread."""
        if self.started or self.owner == 0:
            return False
        self.owner = get_ident()
        self.inside = self.loading = self.phase = False
        self.ring.emit(OWNER)
        return True

    def tell(self, fact: dict[str, Any]) -> None:
        """A fact for the recording; before the process trains it waits."""
        if self._started_told:
            self.ring.tell(fact)
        elif len(self.pending) < MOST_KNOWN:
            self.pending.append(fact)

    def note_missing(self, what: str) -> None:
        self.missing.append(what)

    # -- loaders --------------------------------------------------------------------------------------------------

    @guarded
    def loader_built(self, loader: Any) -> None:
        self._tell_place(loader)

    def _tell_place(self, target: Any) -> None:
        place = caller_place(4)
        if place is not None:
            self.ring.tell({"kind": "place", "of": key_of(target), "where": place})

    @guarded
    def loader_iterated(self, loader: Any) -> None:
        """An iterator of the loader is about to be made: its settings, where they are new."""
        key, seen = key_of(loader), (key_of(type(loader)), key_of(dict_of(loader)))
        if self.loaders.get(key) == seen:
            return
        if len(self.loaders) > MOST_KNOWN:
            self.loaders.clear()
        self.loaders[key] = seen
        if self.loaders_told < MOST_TOLD:
            self.loaders_told += 1
            self.ring.tell({"kind": "loader", "key": key, **objects.describe_loader(loader, None)})

    @guarded
    def iterator_made(self, loader: Any, iterator: Any) -> None:
        pids = objects.worker_pids(iterator)
        if pids:
            self.ring.tell({"kind": "workers", "key": key_of(loader), "pids": pids})

    @undispatched
    def describe_batch(self, batch: Any) -> tuple[int, int, int, int]:
        """The values of BATCH_OUT for a batch."""
        try:
            described = inputs.describe_batch(batch)
            self._copier.look(batch)
            return described
        except Exception as error:
            GUARD.record("a batch", error)
            return 0, 0, 0, 0

    def in_worker(self) -> bool:
        return torch.utils.data.get_worker_info() is not None

    def random_states(self, count: int) -> Any:
        """The random generators' states before one of the first batches is read here."""
        if count > WATCHED_DRAWS or self.in_worker():
            return None
        try:
            return random_states()
        except Exception as error:
            GUARD.record("random states", error)
            return None

    # -- modules --------------------------------------------------------------------------------------------------

    @undispatched
    def forward_begins(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """An outermost forward; 1 where its result has to be described."""
        try:
            held = _module_dict(module)
            known = self.modules.get(key_of(module))
            flags = 0
            if (
                known is None
                or (known[3] and known[1] != key_of(held.get("_parameters")))
                or known[0] != key_of(type(module))
            ):
                flags, known = FIRST_TIME, self._meet(module, held)
            flags |= known[2]
            if _grad_mode():
                flags |= GRAD
            if not known[3] or held.get("training") is not False:
                flags |= TRAINING
            if flags & SYNC_KNOWN:
                spreads = self._spreads(module)
                flags = flags & ~SYNC_KNOWN if spreads is None else flags | (SYNCED if spreads else 0)
                self._ddp_looks += 1
                if self._ddp_looks <= DDP_LOOKS or self._ddp_looks % DDP_EVERY == 0:
                    self._look_at_ddp(objects.follow(module, self.parallel_paths[key_of(module)]))
            first = every = lead = sequences = 0
            if not flags & GRAD:
                self.is_single = False
                if self.resting:
                    self.wake()
                self.without_gradients += 1
                if self.without_gradients > FULL_FORWARDS:
                    self.ring.emit(SKIPPED, SKIPPED_FORWARDS if self.without_gradients > FULL_FORWARDS + 1 else 0)
                    self.skips = SKIPPED_FORWARDS
                if self.without_gradients <= MOST_IDENTIFIED:
                    own, first, every = inputs.identify_inputs(args, kwargs)
                    flags |= own
            elif flags & LEARNS:
                self.forwards += 1
                if len(self.optimizers) > 1:
                    flags |= self._compare_weights(module)
                if self.forwards > 1:
                    self.is_single = False
                if not self.is_single or self.steps < MATCHED_STEPS:
                    own, first, every = inputs.identify_inputs(args, kwargs)
                    flags |= own
                if not self.loaders:
                    own, lead, sequences = inputs.size_inputs(args, kwargs)
                    flags |= own
            elif flags & FIRST_TIME:
                flags |= inputs.needs_gradients(args, kwargs)
            self.ring.emit(FORWARD_IN, key_of(module), flags, first, every, lead, sequences)
            if flags & LEARNS and not self.loaders:
                self._copier.look((*args, kwargs) if kwargs else args)
            return int(bool(flags & FIRST_TIME) and not flags & LEARNS)
        except Exception as error:
            self.ring.emit(FORWARD_IN, key_of(module), (GRAD if _grad_mode() else 0) | TRAINING)
            GUARD.record("a forward", error)
            return 0

    def _compare_weights(self, module: Any) -> int:
        """With several optimizers a step of one of them may leave the weights of this module as they are."""
        key = key_of(module)
        before = self.weights.get(key)
        if before is None and len(self.weights) > MOST_KNOWN:
            self.weights.clear()
        path = objects.path_to_weights(module) if before is None else before[0]
        version = None if path is None else objects.weights_version(module, path)
        self.weights[key] = (path, version)
        if before is None or version is None:
            return 0
        return SAME_WEIGHTS if version == before[1] else NEW_WEIGHTS

    @undispatched
    def describe_result(self, result: Any) -> int:
        """For the result of a new module: 1 for a tensor, 2 for a tensor that needs gradients, else 0."""
        try:
            tensor = inputs.first_tensor(result)
            return 0 if tensor is None else 1 + int(tensor.requires_grad)
        except Exception as error:
            GUARD.record("a result", error)
            return 0

    def _spreads(self, module: Any) -> bool | None:
        path = self.parallel_paths.get(key_of(module))
        return None if path is None else objects.spreads_gradients(objects.follow(module, path))

    def _meet(self, module: Any, held: dict[str, Any]) -> tuple[int, int, int, bool]:
        """A module that was not called before."""
        flags, tree = objects.look_at_module(module)
        if len(self.modules) > MOST_KNOWN:
            self.modules.clear()
            self.parallel_paths.clear()
        self.parallel_paths.pop(key_of(module), None)  # of a module that is gone and had the same address
        if "torch.distributed" in sys.modules:
            most = objects.MOST_MODULES if tree.is_sharded() else objects.MOST_WRAPPERS
            path = objects.path_to_parallel(module, most)
            if path is not None:
                self.parallel_paths[key_of(module)] = path
                flags |= SYNC_KNOWN
        is_plain = has_plain_keys(held)
        parameters = key_of(held.get("_parameters")) if is_plain else 0
        known = self.modules[key_of(module)] = (key_of(type(module)), parameters, flags, is_plain)
        if flags & LEARNS and self.meets_model is not None:
            self.meets_model(module)
        if flags & LEARNS and self._models_told < MOST_TOLD:
            self._models_told += 1
            described = objects.describe_model(module, tree)
            if self.device_index is None and described["device"] not in (None, "cpu"):
                self.device_index = described["device_index"]
                if self.time_on_device is not None and described["device"] == "cuda" and self.device_index is not None:
                    self.time_on_device(self, self.device_index)
            self.ring.tell({"kind": "model", "key": key_of(module), **described})
        return known

    @guarded
    def nested_call(self, module: Any, args: tuple[Any, ...]) -> None:
        """In the first steps only: what holds inside the outermost module."""
        if get_ident() != self.owner or self.backward:
            return
        if not self._autocast_told:
            self._look_for_autocast()
        kind = type(module)
        if key_of(kind) in objects._TIME_FIRST and dict_of(module).get("batch_first") is False and args:
            if inputs.is_tensor(args[0]) and args[0].dim() == 3:
                self.ring.emit(INNER_BATCH, args[0].shape[1])
            elif type(args[0]) is torch.nn.utils.rnn.PackedSequence:
                self.ring.emit(INNER_BATCH, int(args[0].batch_sizes[0]))
        elif key_of(kind) in objects._TABLES and args and inputs.is_tensor(args[0]):
            self.table_rows += args[0].numel()
        spreads = objects.spreads_gradients(module) if self._parallel else None
        if spreads is not None and not self._parallel.get(key_of(module)):
            self._parallel[key_of(module)] = 1
            self._look_at_ddp(module)

    def _look_for_autocast(self) -> None:
        for device in ("cuda", "cpu"):
            if torch.is_autocast_enabled(device):
                self._autocast_told = True
                dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
                self.tell({"kind": "autocast", "dtype": dtype, "device": device})

    def _look_at_ddp(self, module: Any) -> None:
        """Settings after buckets were rebuilt, and the times that torch's reducer takes of some iterations."""
        if self._ddp_looks in (3, DDP_LOOKS) or self._ddp_looks % (5 * DDP_EVERY) == 0:
            described = objects.describe_ddp(module, None)
            if described is not None:
                self.ring.tell({"of": key_of(module), **described})
        timed = objects.ddp_times(module) if self._ddp_looks > 2 else None
        if timed is not None and timed[0] != self._ddp_iteration:
            self._ddp_iteration = timed[0]
            self.ring.tell(timed[1])

    @guarded
    def ddp_built(self, ddp: Any) -> None:
        self._parallel[key_of(ddp)] = 0
        self._tell_place(ddp)

    # -- backward, optimizers ---------------------------------------------------------------------------------------

    @guarded
    def backward_ended(self) -> None:
        """At the first backwards, and when torch's own counters are to be looked at."""
        self.backwards += 1
        if not self._started_told:
            self._tell_start()
        if self.learning:
            if not self._autocast_told:
                self._look_for_autocast()
            if self.backwards >= LEARNING_BACKWARDS:
                self.learning = False
                self.due = False
                if self.table_rows:
                    self.ring.tell({"kind": "table_rows", "per_backward": self.table_rows // self.backwards})
                self.next_look_ns = _clock() + self._look_ns

    @guarded
    def _tell_start(self) -> None:
        """The process trains: who it is, how its stack is read from outside, and what was seen before."""
        self._started_told = True
        restart = facts.integer(os.environ.get("TORCHELASTIC_RESTART_COUNT")) or 0
        self.ring.tell(facts.process_facts(self.anchor_wall_s, restart, self.options.get("affinity_cores")))
        self.tell_access()
        for missing in self.missing:
            self.ring.tell({"kind": "health", "level": "warning", "message": f"not observed: {missing}"})  # words: ok
        for fact in self.pending:
            self.ring.tell(fact)
        self.pending.clear()
        GUARD.tell = self._tell_failure
        for failure in tuple(GUARD.failures):
            self._tell_failure(failure)

    @guarded
    def tell_access(self) -> None:
        """Where the stack of the calling thread is read from outside."""
        access = describe_access(current_thread_state()) if self.options.get("stacks", True) else None
        self.ring.tell({"kind": "access", "layout": access})

    def _tell_failure(self, failure: str) -> None:
        self.ring.tell({"kind": "health", "level": "warning", "message": f"hotloop's agent failed: {failure}"})

    # -- a budget -------------------------------------------------------------------------------------------------

    def weigh(self, now_ns: int, number: int) -> None:
        """After a step: whether the hooks cost more than their budget, and for how many steps they rest."""
        if self.steps & WEIGHED_STEPS == 0 or number >= self.weigh_from:
            self.weigh_from = number + WEIGHED_EVENTS
            (before_ns, before), self.weighed_at = self.weighed_at, (now_ns, number)
            spent_ns, may_ns = (number - before) * EVENT_NS, (now_ns - before_ns) * BUDGET_RATIO
            is_known = self.steps > FULL_STEPS or (self.steps >= FEWEST_STEPS and number >= FULL_EVENTS)
            is_measured = is_known and self.may_rest and self.session is None
            is_single = len(self.optimizers) == 1
            wanted = spent_ns / max(1.0, may_ns) * (1 + self.rests_for) if is_measured and is_single else 0.0
            self.rests_for = min(MOST_RESTED, int(wanted)) if wanted > 1.0 else 0
            self.fewest_nograd, self.usual_nograd = MOST_KNOWN, self.fewest_nograd
        if self.rests_for:
            # Drawn, so that nothing that recurs is always rested over.
            self.rest_left = self.rests_for if self.rests_for < 2 else 1 + int(_draw() * (2 * self.rests_for - 1))
            self.resting = True
            self.rest_from, self.skips = self.rest_left, self.usual_nograd

    def step_rested(self) -> None:
        """A step has passed that was only counted."""
        self.rest_left -= 1
        self.skips = self.usual_nograd
        self.ring.note_rested(self.rest_from - self.rest_left)
        if self.muted and self.ring.request() != self.heard:
            self.hear()
        elif self.rest_left <= 0:
            self.wake()

    def wake(self) -> None:
        """Time what comes from here on."""
        if self.muted:
            return
        self.resting = False
        self.skips = 0
        rested = self.rest_from - self.rest_left
        if rested:
            self.ring.emit(RESTED, rested)
            self.ring.note_rested(0)

    @guarded
    def optimizer_built(self, optimizer: Any) -> None:
        self._tell_place(optimizer)
        self.optimizers[key_of(optimizer)] = FIRST_LOOK

    @guarded
    def step_ended(self, optimizer: Any, key: int) -> None:
        """One of an optimizer's first steps."""
        if not self._started_told:
            self._tell_start()
        left = self.optimizers.get(key, FIRST_LOOK)
        if len(self.optimizers) > MOST_KNOWN:
            self.optimizers.clear()
        self.optimizers[key] = left - 1
        if self.optimizers_told > MOST_TOLD:
            self.optimizers[key] = 0
            return
        if left > HELD_STEPS:
            self.optimizers_told += 1
            self.ring.tell({"kind": "optimizer", "key": key, **objects.describe_optimizer(optimizer, None)})
        if left > HELD_STEPS or left == 1:
            self.ring.tell({"kind": "held", "key": key, **objects.held_bytes(optimizer)})

    @guarded
    def look(self, now_ns: int) -> None:
        """The counts that torch itself keeps: compilation, and the memory of a device."""
        self._look_ns = min(SLOW_NS, self._look_ns * 2)
        self.next_look_ns = now_ns + self._look_ns
        if self.device_index is not None:
            self.ring.tell({"kind": "device", "memory": device_memory(self.device_index)})
        self.tell_compilation()
        if self.ring.request() != self.heard:
            self.hear()

    @guarded
    def hear(self) -> None:
        """Do what ``hotloop attach`` asks of a training that runs."""
        self.heard = self.ring.request()
        if self.fulfill is not None:
            self.fulfill(self, self.heard)

    @guarded
    def tell_compilation(self) -> None:
        if self.compile_used:
            fact = compile_facts(None)
            if fact is not None:
                self.ring.tell(fact)

    # -- what else is called ----------------------------------------------------------------------------------------

    @guarded
    def scaler_built(self, scaler: Any) -> None:
        held = dict_of(scaler)
        if held.get("_enabled") is True:
            device = held.get("_device")
            place = caller_place(4)
            self.tell(
                {"kind": "scaler", "enabled": True, "where": place, "device": device if type(device) is str else None}
            )

    @guarded
    def anomaly_set(self, _mode: Any) -> None:
        """Where anomaly detection is turned on first; a compiler does so for itself, and a loop in each step."""
        if not self._anomaly_told and not self.compiling and torch.is_anomaly_enabled():
            self._anomaly_told = True
            self.tell({"kind": "setting_place", "setting": "anomaly-detection", "where": caller_place(4)})

    @guarded
    def checkpointing_seen(self) -> None:
        if not self._checkpointing_told:
            self._checkpointing_told = True
            self.tell({"kind": "checkpointing", "where": caller_place(4), "reentrant": None})

    @guarded
    def compile_called(self) -> None:
        self.compile_used = True
        if not self._compile_told:
            self._compile_told = True
            self.ring.tell({"kind": "compile_place", "where": caller_place(4)})

    @guarded
    def collected_all(self) -> None:
        """The user's line when it calls gc.collect itself."""
        if not self._collected_told:
            frame = sys._getframe(2).f_back
            if frame is not None and "collect" in frame.f_code.co_names and is_user_code(frame.f_code):
                self._collected_told = True
                self.ring.tell({"kind": "collect_place", "where": place_of(frame)})

    @guarded
    def end(self) -> None:
        """At the interpreter's exit: how it ended, in one event."""
        self.muted = False
        if self.resting:
            self.wake()
        if self.session is not None:
            self.session.finish()
        ended = uncaught_error()
        out_of_memory = ended is not None and is_out_of_memory(*ended)
        if not self._started_told and not out_of_memory:
            return
        if not self._started_told:
            self._tell_start()
        self.tell_compilation()
        if ended is None:
            self.ring.emit(END, HOW_COMPLETED)
            return
        if out_of_memory:
            fact = describe_memory_end()
            if fact is not None:
                self.ring.tell(fact)
        self.ring.tell({"kind": "exception", "name": ended[0].__name__})
        self.ring.emit(END, HOW_INTERRUPTED if issubclass(ended[0], KeyboardInterrupt) else HOW_EXCEPTION)

    def set_flag(self, flag: int, value: bool) -> None:
        self.ring.emit(FLAG, flag, int(value))
