"""Torch's call sites -> the same calls, each noted as an event or two. Every function here makes one replacement.

A hook reads clocks and integers and writes one slot. What an event means is found out in hotloop's own process
(``replay``): no phase, no step and no batch is counted here. Calls on other threads than the one that trains, and calls
inside a call that is noted already, go through at once.
"""

from __future__ import annotations

import functools
import time
from _thread import get_ident
from collections import OrderedDict
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch

from hotloop.core.events import (
    BACKWARD_IN,
    BACKWARD_OUT,
    BATCH_END,
    BATCH_IN,
    BATCH_OUT,
    COLLECTED,
    FETCH,
    FORWARD_OUT,
    GRAPH,
    ITERATOR_IN,
    ITERATOR_OUT,
    PHASE_IN,
    PHASE_OUT,
    RECOMPUTED,
    SCALER_IN,
    SCALER_OUT,
    SCALER_WORK_IN,
    SCALER_WORK_OUT,
    STEP_IN,
    STEP_OUT,
)

from .agent import FIRST_LOOK, Agent
from .draws import drew
from .guard import GUARD
from .inputs import dict_of, key_of

Call = Callable[..., Any]

CPU_GAP_NS = 20_000_000
"""The process's CPU time is read at most so often."""
WEIGHED_STEPS = 63
"""After every 64th step it is weighed what the hooks cost."""
WATCHED_FETCHES, FETCH_GAP = 64, 4
"""Every one of the first batches is timed where it is read, and later one in so many."""
_HIDDEN = "<hotloop, hidden as importlib._bootstrap>"
_clock = time.perf_counter_ns
_cpu_clock = time.process_time_ns
_thread_clock = time.thread_time_ns
_is_dynamo_tracing = getattr(torch.compiler, "is_dynamo_compiling", torch.compiler.is_compiling)
_jit_state = torch._C._get_tracing_state
_grad_mode = torch.is_grad_enabled
_graph_task = torch._C._current_graph_task_id


class _NeverTracing:
    _is_compiling_flag = False


_tracing: Any = torch.compiler if hasattr(torch.compiler, "_is_compiling_flag") else _NeverTracing


def unseen(replacement: Call) -> Call:
    """The replacement, whose frame ``warnings`` does not count: a warning names the line that it names without us.

    ``warnings`` passes over frames of the import machinery, which it knows by their file's name. Not for functions
    that Dynamo traces: it refuses such frames.
    """
    function: Any = replacement
    function.__code__ = function.__code__.replace(co_filename=_HIDDEN)
    return replacement


# -- loading --------------------------------------------------------------------------------------------------------


def wrap_loader_iter(agent: Agent) -> Callable[[Call], Call]:
    """DataLoader.__iter__: creating an iterator (workers start here) is waiting for input."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def __iter__(self: Any, /) -> Any:
            if get_ident() != agent.owner:
                return original(self)
            if agent.resting:
                agent.wake()
            agent.loader_iterated(self)
            agent.ring.emit(ITERATOR_IN, key_of(self))
            iterator = None
            try:
                iterator = original(self)
            finally:
                agent.ring.emit(ITERATOR_OUT, key_of(self), key_of(iterator))
            agent.iterator_made(self, iterator)
            return iterator

        return unseen(__iter__)

    return wrap


def wrap_loader_next(agent: Agent) -> Callable[[Call], Call]:
    """_BaseDataLoaderIter.__next__: waiting for the next batch."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def __next__(self: Any, /) -> Any:
            if agent.loading or agent.resting or get_ident() != agent.owner:  # also a loader that reads another one
                return original(self)
            agent.loading = True
            described = None
            agent.ring.emit(BATCH_IN, key_of(self))
            try:
                batch = original(self)
                described = agent.describe_batch(batch)
                return batch
            finally:
                agent.loading = False
                if described is None:
                    agent.ring.emit(BATCH_END, key_of(self))
                else:
                    agent.ring.emit(BATCH_OUT, key_of(self), *described)

        return unseen(__next__)

    return wrap


def _timed(collate: Any, spent_ns: list[int]) -> Call:
    """A collate function for one call, that adds up how long it takes."""

    def hotloop_timed(*values: Any, **named: Any) -> Any:
        start_ns = _clock()
        try:
            return collate(*values, **named)
        finally:
            spent_ns[0] += _clock() - start_ns

    return hotloop_timed


# Once for all functions that it makes: a person's audit hook would see each of them changed.
_timed.__code__ = _timed.__code__.replace(
    co_consts=tuple(
        const.replace(co_filename=_HIDDEN) if isinstance(const, CodeType) else const
        for const in _timed.__code__.co_consts
    )
)


def wrap_fetch(agent: Agent) -> Callable[[Call], Call]:
    """_MapDatasetFetcher.fetch and its iterable twin: reading the samples apart from collating them, in a worker or in
    the training process."""

    def wrap(original: Call) -> Call:
        count = 0

        @functools.wraps(original)
        def fetch(self: Any, possibly_batched_index: Any, /) -> Any:
            nonlocal count
            count += 1
            if not agent.notes_fetches or (count > WATCHED_FETCHES and count % FETCH_GAP):
                return original(self, possibly_batched_index)
            if not agent.in_worker() and get_ident() != agent.owner:
                return original(self, possibly_batched_index)
            held = dict_of(self)
            collate = held.get("collate_fn")
            spent_ns = [0]
            timed = _timed(collate, spent_ns)
            is_plain = type(collate) is FunctionType and collate.__name__ != timed.__name__
            if is_plain:
                held["collate_fn"] = timed
            before = agent.random_states(count)
            start_ns, start_busy_ns = _clock(), _thread_clock()
            try:
                return original(self, possibly_batched_index)
            finally:
                busy_ns, wall_ns = _thread_clock() - start_busy_ns, _clock() - start_ns
                if is_plain and held.get("collate_fn") is timed:  # another thread may have put its own there
                    held["collate_fn"] = collate
                stands_for = 1 if count <= WATCHED_FETCHES else FETCH_GAP
                agent.ring.emit(FETCH, wall_ns - spent_ns[0], busy_ns, spent_ns[0], drew(before), stands_for)

        return unseen(fetch)

    return wrap


# -- modules --------------------------------------------------------------------------------------------------------


def wrap_module_call(agent: Agent) -> Callable[[Call], Call]:
    """nn.Module.__call__, written anew: it does what torch's own does and calls what that calls, so that no frame is
    added to any of the calls inside a model. A torch whose own does something else is called as it is."""

    def wrap(original: Call) -> Call:
        is_known = getattr(original, "__code__", None) is not None and original.__code__.co_names == (
            "_compiled_call_impl",
            "_call_impl",
        )

        def _wrapped_call_impl(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if _is_dynamo_tracing():
                if self._compiled_call_impl is not None:
                    return self._compiled_call_impl(*args, **kwargs)
                return self._call_impl(*args, **kwargs)
            if (
                agent.inside
                or (agent.resting and _grad_mode())
                or get_ident() != agent.owner
                or _tracing._is_compiling_flag
                or _jit_state() is not None
            ):
                if agent.learning:
                    agent.nested_call(self, args)
                if self._compiled_call_impl is not None:
                    return self._compiled_call_impl(*args, **kwargs)
                return self._call_impl(*args, **kwargs)
            agent.inside = True
            if agent.skips:
                try:
                    if not _grad_mode():
                        agent.skips -= 1
                        if self._compiled_call_impl is not None:
                            return self._compiled_call_impl(*args, **kwargs)
                        return self._call_impl(*args, **kwargs)
                finally:
                    agent.inside = agent.skips < 0
                agent.inside = True
            is_backward = _graph_task() != -1
            failed = 1
            start_ns = told = 0
            try:
                if is_backward:  # activation checkpointing computes again
                    start_ns = _clock()
                else:
                    told = agent.forward_begins(self, args, kwargs)
                if self._compiled_call_impl is not None:
                    result = self._compiled_call_impl(*args, **kwargs)
                else:
                    result = self._call_impl(*args, **kwargs)
                failed = 0
                if told:
                    told = agent.describe_result(result)
                return result
            finally:
                agent.inside = False
                if is_backward:
                    agent.ring.emit(RECOMPUTED, _clock() - start_ns)
                else:
                    agent.ring.emit(FORWARD_OUT, key_of(self), failed, told)

        if is_known:
            return functools.update_wrapper(_wrapped_call_impl, original)
        agent.note_missing("module-call: this torch calls modules in another way")
        return original

    return wrap


# -- backward and optimizer -----------------------------------------------------------------------------------------


def wrap_run_backward(agent: Agent) -> Callable[[Call], Call]:
    """torch.autograd._engine_run_backward: the one function below every way to start a backward."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
            if _is_dynamo_tracing() or _tracing._is_compiling_flag or agent.backward or agent.resting:
                return original(*args, **kwargs)
            if get_ident() != agent.owner and not agent.claim():
                return original(*args, **kwargs)
            retain = len(args) > 2 and args[2] is True and not (len(args) > 3 and args[3] is True)
            agent.backward = True
            failed = 1
            agent.ring.emit(BACKWARD_IN, 1 if retain else 0)
            try:
                result = original(*args, **kwargs)
                failed = 0
                return result
            finally:
                agent.backward = False
                agent.started = True
                agent.ring.emit(BACKWARD_OUT, failed)
                if agent.due:
                    agent.backward_ended()

        return unseen(_engine_run_backward)

    return wrap


class _Hooks(OrderedDict):  # type: ignore[type-arg]
    """Torch's global hooks of all optimizers. The classes of a person's optimizers refer to them: a pickle that takes
    such a class along by value gets them without ours, and none at all where there are no others."""

    ours: frozenset[int] = frozenset()

    def __reduce__(self) -> Any:
        return (OrderedDict, ([(key, hook) for key, hook in self.items() if key not in self.ours],))


def hook_optimizers(agent: Agent) -> None:
    """The step of every optimizer that torch knows of, by its own global hooks: no class is touched, no frame added."""
    from torch.optim import optimizer as module

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if _is_dynamo_tracing() or _tracing._is_compiling_flag:
            return
        if (get_ident() == agent.owner or agent.claim()) and not agent.resting:
            agent.ring.emit(STEP_IN, key_of(optimizer))

    cpu_at_ns = 0

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal cpu_at_ns
        if _is_dynamo_tracing() or _tracing._is_compiling_flag:
            return
        if get_ident() != agent.owner:
            return
        if agent.resting:
            agent.step_rested()
            return
        agent.started = True
        agent.without_gradients = agent.skips = agent.forwards = 0
        key, now_ns, cpu_ns = key_of(optimizer), _clock(), 0
        if now_ns - cpu_at_ns > CPU_GAP_NS:
            cpu_at_ns, cpu_ns = now_ns, _cpu_clock()
        number = agent.ring.emit(STEP_OUT, key, cpu_ns)
        if agent.optimizers.get(key, FIRST_LOOK):
            agent.step_ended(optimizer, key)
        if now_ns > agent.next_look_ns:
            agent.look(now_ns)
        agent.steps += 1
        if agent.rests_for or not agent.steps & WEIGHED_STEPS:
            agent.weigh(now_ns, number)

    for name, hook in (("_global_optimizer_pre_hooks", before_step), ("_global_optimizer_post_hooks", after_step)):
        before = getattr(module, name)
        hooks = _Hooks(before)
        handle = torch.utils.hooks.RemovableHandle(hooks)
        hooks[handle.id] = hook
        hooks.ours = frozenset((handle.id,))
        setattr(module, name, hooks)


def wrap_scaler_step(agent: Agent) -> Callable[[Call], Call]:
    """GradScaler.step: a step that it skips is a step all the same."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def step(self: Any, optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
            if get_ident() != agent.owner or dict_of(self).get("_enabled") is not True:
                return original(self, optimizer, *args, **kwargs)
            failed = 1
            agent.may_rest = False
            agent.ring.emit(SCALER_IN, key_of(optimizer))
            try:
                result = original(self, optimizer, *args, **kwargs)
                failed = 0
                return result
            finally:
                agent.ring.emit(SCALER_OUT, key_of(optimizer), failed)

        return unseen(step)

    return wrap


def wrap_scaler_work(agent: Agent) -> Callable[[Call], Call]:
    """GradScaler.unscale_ and update: the scaler's own work, charged to the optimizer."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def work(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if get_ident() != agent.owner or dict_of(self).get("_enabled") is not True:
                return original(self, *args, **kwargs)
            agent.ring.emit(SCALER_WORK_IN)
            try:
                return original(self, *args, **kwargs)
            finally:
                agent.ring.emit(SCALER_WORK_OUT)

        return unseen(work)

    return wrap


# -- constructors ---------------------------------------------------------------------------------------------------


def wrap_init(then: Callable[[Any], None]) -> Callable[[Call], Call]:
    """A constructor of torch's: ``then`` gets the object when it is built, and keeps nothing of it."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            try:
                then(self)
            except Exception as error:
                GUARD.record("a constructor", error)

        return unseen(__init__)

    return wrap


# -- collectives, checkpoints, copies -------------------------------------------------------------------------------


def wrap_phase(agent: Agent, field: int) -> Callable[[Call], Call]:
    """A call that is a phase of its own wherever it happens, except inside itself."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _is_dynamo_tracing() or _tracing._is_compiling_flag:
                return original(*args, **kwargs)
            if agent.phase or get_ident() != agent.owner:
                return original(*args, **kwargs)
            agent.phase = True
            if agent.resting:
                agent.wake()
            agent.ring.emit(PHASE_IN, field)
            try:
                return original(*args, **kwargs)
            finally:
                agent.phase = False
                agent.ring.emit(PHASE_OUT, field)

        return call

    return wrap


def wrap_copy(agent: Agent, field: int) -> Callable[[Call], Call]:
    """Tensor.to, cuda and copy_ towards an accelerator; patched only where one exists."""
    inner = wrap_phase(agent, field)

    def wrap(original: Call) -> Call:
        timed = inner(original)

        @functools.wraps(original)
        def copy(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if _is_dynamo_tracing() or agent.inside or type(self) is not torch.Tensor or self.device.type != "cpu":
                return original(self, *args, **kwargs)
            return timed(self, *args, **kwargs)

        return copy

    return wrap


def wrap_activation_checkpoint(agent: Agent) -> Callable[[Call], Call]:
    """Below torch.utils.checkpoint.checkpoint: note that it is used, and from where."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            agent.checkpointing_seen()
            return original(*args, **kwargs)

        return call

    return wrap


def wrap_compile(agent: Agent) -> Callable[[Call], Call]:
    """torch.compile: note that it is used, and from where; what it returns is torch's own."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            if not (_is_dynamo_tracing() or _tracing._is_compiling_flag):
                agent.compile_called()
            return original(*args, **kwargs)

        return compile

    return wrap


def wrap_graph_call(agent: Agent) -> Callable[[Call], Call]:
    """One compiled graph's call; torch.compile runs it with its own tracing off."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def __call__(self: Any, inputs: Any, /) -> Any:
            if get_ident() != agent.owner:
                return original(self, inputs)
            start_ns = _clock()
            try:
                return original(self, inputs)
            finally:
                agent.ring.emit(GRAPH, _clock() - start_ns, int(_grad_mode()))

        return __call__

    return wrap


def gc_callback(agent: Agent) -> Call:
    """For gc.callbacks: time spent collecting garbage, on any thread."""
    started_ns = 0

    def on_collection(phase: str, info: dict[str, int]) -> None:
        nonlocal started_ns
        if phase == "start":
            started_ns = _clock()
        elif started_ns:
            generation = info.get("generation", 0)
            agent.ring.emit(COLLECTED, _clock() - started_ns, generation)
            started_ns = 0
            if generation == 2:
                agent.collected_all()

    return on_collection
