"""Torch's call sites -> the same calls, each noted as an event or two. Every function here makes one replacement.

A hook reads clocks and integers and writes one slot. What an event means is found out in hotloop's own process
(``replay``): no phase, no step and no batch is counted here. Calls on other threads than the one that trains, and calls
inside a call that is noted already, go through at once.
"""

from __future__ import annotations

import copy
import functools
import time
from _thread import get_ident
from collections import OrderedDict
from collections.abc import Callable
from types import CodeType
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
"""All of the first batches are timed where they are read, and later one in every few."""
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


def in_place_of(original: Call, replacement: Call) -> Call:
    """A function of torch's that is written anew: its frames, and those of its comprehensions, name torch's file and
    the call at the end of torch's own, as warnings, loggers and tracebacks of the person's would without us."""
    theirs = original.__code__
    line, columns = _last_call(theirs)

    def placed(code: CodeType, **names: Any) -> CodeType:
        units = len(code.co_code) // 2
        # Entries of at most 8 units, all at the same place (CPython's Objects/locations.md).
        place = bytes((0, 0)) + b"".join(map(_varint, columns))
        table = b"".join(bytes((0x80 | 14 << 3 | min(8, units - at) - 1,)) + place for at in range(0, units, 8))
        consts = tuple(placed(const) if isinstance(const, CodeType) else const for const in code.co_consts)
        return code.replace(
            co_filename=theirs.co_filename, co_firstlineno=line, co_linetable=table, co_consts=consts, **names
        )  # fmt: skip

    function: Any = replacement
    function.__code__ = placed(function.__code__, co_name=theirs.co_name, co_qualname=theirs.co_qualname)
    return functools.update_wrapper(replacement, original)


def _last_call(code: CodeType) -> tuple[int, tuple[int, int]]:
    """The last line of a function and the columns, counted from 1, of what its ``return`` gives; (0, 0) where columns
    are not kept."""
    spans = [(line, first, last) for line, end, first, last in code.co_positions() if line is not None and line == end]
    line = max(line for _, _, line in code.co_lines() if line is not None)
    on_line = [(first, last) for at, first, last in spans if at == line and first is not None and last is not None]
    returned = min((first for first, _ in on_line), default=0)
    calls = [(first, last) for first, last in on_line if first > returned]
    first, last = max(calls, key=lambda span: span[1] - span[0], default=(-1, -1))
    return line, (first + 1, last + 1)


def _varint(value: int) -> bytes:
    parts = []
    while value > 63:
        parts.append(0x40 | value & 63)
        value >>= 6
    return bytes((*parts, value))


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


_MAP_NAMES = ("auto_collation", "hasattr", "dataset", "__getitems__", "collate_fn")
_STREAM_NAMES = (
    "ended", "StopIteration", "auto_collation", "append", "next", "dataset_iter", "len", "drop_last", "collate_fn",
)  # fmt: skip
"""The names that torch's fetchers look up, in order: another torch may fetch differently."""


def wrap_fetch(agent: Agent) -> Callable[[Call], Call]:
    """_MapDatasetFetcher.fetch and its iterable twin, in a worker or in the training process: written anew, so that
    reading the samples and collating them are timed apart with nothing of ours between torch and the person's. A torch
    whose own does something else is called as it is."""

    def wrap(original: Call) -> Call:
        count = 0

        def is_watched() -> bool:
            nonlocal count
            count += 1
            return (
                agent.notes_fetches
                and (count <= WATCHED_FETCHES or count % FETCH_GAP == 0)
                and (agent.in_worker() or get_ident() == agent.owner)
            )

        def begin() -> tuple[Any, int, int]:
            return agent.random_states(count), _thread_clock(), _clock()

        def end(before: Any, start_busy_ns: int, start_ns: int, read_ns: int) -> None:
            busy_ns, end_ns = _thread_clock() - start_busy_ns, _clock()
            stands_for = 1 if count <= WATCHED_FETCHES else FETCH_GAP
            read_ns = read_ns or end_ns
            agent.ring.emit(FETCH, read_ns - start_ns, busy_ns, end_ns - read_ns, drew(before), stands_for)

        def fetch_samples(self: Any, possibly_batched_index: Any, /) -> Any:
            began = begin() if is_watched() else None
            read_ns = 0
            try:
                if not self.auto_collation:
                    data = self.dataset[possibly_batched_index]
                elif hasattr(self.dataset, "__getitems__") and self.dataset.__getitems__:
                    data = self.dataset.__getitems__(possibly_batched_index)
                else:
                    data = [self.dataset[index] for index in possibly_batched_index]
                if began is not None:
                    read_ns = _clock()
                return self.collate_fn(data)
            finally:
                if began is not None:
                    end(*began, read_ns)

        def fetch_stream(self: Any, possibly_batched_index: Any, /) -> Any:
            if self.ended:
                raise StopIteration
            began = begin() if is_watched() else None
            read_ns = 0
            try:
                if self.auto_collation:
                    data = []
                    for _ in possibly_batched_index:
                        try:
                            data.append(next(self.dataset_iter))
                        except StopIteration:
                            self.ended = True
                            break
                    if not data or (self.drop_last and len(data) < len(possibly_batched_index)):
                        raise StopIteration
                else:
                    data = next(self.dataset_iter)
                if began is not None:
                    read_ns = _clock()
                return self.collate_fn(data)
            finally:
                if began is not None:
                    end(*began, read_ns)

        code = getattr(original, "__code__", None)
        names = code.co_names if code is not None else ()
        if names == _MAP_NAMES:
            return in_place_of(original, fetch_samples)
        if names == _STREAM_NAMES:
            return in_place_of(original, fetch_stream)
        agent.note_missing("fetch: this torch reads batches in a different way")
        return original

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
                or (agent.resting and (agent.muted or _grad_mode()))
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
            return in_place_of(original, _wrapped_call_impl)
        agent.note_missing("module-call: this torch calls modules in a different way")
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
            if agent.compiling or (get_ident() != agent.owner and not agent.claim()):
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
        agent.compiling = False  # also where a compilation failed without an end
        if agent.without_gradients < agent.fewest_nograd:
            agent.fewest_nograd = agent.without_gradients
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
        if agent.rests_for or not agent.steps & WEIGHED_STEPS or number >= agent.weigh_from:
            agent.weigh(now_ns, number)

    for name, hook in (("_global_optimizer_pre_hooks", before_step), ("_global_optimizer_post_hooks", after_step)):
        before = getattr(module, name)
        hooks = _Hooks(before)
        handle = torch.utils.hooks.RemovableHandle(hooks)
        hooks[handle.id] = hook
        hooks.ours = frozenset((handle.id,))
        setattr(module, name, hooks)


def wrap_scaler_step(agent: Agent) -> Callable[[Call], Call]:
    """GradScaler.step: a skipped step is a step all the same."""

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

        return _Constructor(unseen(__init__), original)

    return wrap


def wrap_traced_init(then: Callable[[Any], None]) -> Callable[[Call], Call]:
    """The same for a constructor that Dynamo may meet: it sees a function of torch's file, as without us."""

    def wrap(original: Call) -> Call:
        def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            then(self)

        return in_place_of(original, __init__)

    return wrap


class _Constructor:
    """In a class of torch's, what its constructor is here. Some picklers take such classes along by value (dill those
    of ``torch.optim``): they get torch's own, and nothing of ours."""

    __slots__ = ("__wrapped__", "_call")

    def __init__(self, call: Call, original: Call) -> None:
        self._call, self.__wrapped__ = call, original

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self._call.__get__(instance, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __reduce__(self) -> Any:
        return copy.copy, (self.__wrapped__,)


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
