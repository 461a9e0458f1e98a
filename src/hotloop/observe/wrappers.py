"""Originals of torch's call sites -> the same calls, timed. Each function here makes one wrapper for attach to install.

A wrapper's cost is the tool's overhead: nothing is looked up twice, other threads and nested calls leave at once, and
whatever is not a plain clock reading is guarded, sampled, or done once per object.

Torch's operators leave caches and branch predictors cold, so that every line costs several times what it costs in a
loop. While ``recorder.quick`` holds, the four hooks of every step therefore do by themselves what they else ask
Recorder.enter, leave and optimizer_ended for; whatever is unusual goes the long way below.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from hotloop.core.recording import FIELD

from .batches import first_shape
from .loader_state import LoaderState
from .recorder import (
    AFTER_BACKWARD,
    AFTER_FORWARD,
    AFTER_INPUT,
    BACKWARD,
    BACKWARDS,
    CHECKPOINT,
    COMMUNICATION,
    FORWARD,
    H2D,
    INPUT,
    ITERATOR,
    NOGRAD,
    OPTIMIZER,
    OTHER,
    OTHER_INPUT,
    OTHER_ITERATOR,
    Recorder,
)
from .session import Session
from .thread_time import busy_ns

BATCHES = FIELD["batches"]
MICRO_BATCHES = FIELD["micro_batches"]
SAMPLES = FIELD["samples"]
PADDED = FIELD["padded_tokens"]
ITERATORS = FIELD["iterators"]
FORWARDS = FIELD["forwards"]
NOGRAD_FORWARDS = FIELD["nograd_forwards"]
REPEATED = FIELD["repeated_forwards"]
REPEATED_NS = FIELD["repeated_forward_ns"]
REPEATED_NOGRAD = FIELD["repeated_nograd_forwards"]
RECOMPUTE_NS = FIELD["recompute_ns"]
SCALER_NS = FIELD["scaler_ns"]
CHECKPOINTS = FIELD["checkpoints"]
COLLECTIVES = FIELD["collectives"]


class _NeverTracing:
    """In the place of torch.compiler where it does not say that something else than Dynamo traces."""

    _is_compiling_flag = False


_FORWARDS = (FORWARD, NOGRAD)
_LOADING = (INPUT, ITERATOR)
_ident = threading.get_ident
_clock = time.perf_counter_ns

# Dynamo, which folds both ways to ask, and whatever else traces. The function that asks for both at once costs more.
_is_dynamo_tracing = getattr(torch.compiler, "is_dynamo_compiling", torch.compiler.is_compiling)
_tracing: Any = torch.compiler if hasattr(torch.compiler, "_is_compiling_flag") else _NeverTracing

Call = Callable[..., Any]


def unseen(wrapper: Call) -> Call:
    """The wrapper, for whose frame ``warnings`` does not count: a warning names the line that it names without us.

    ``warnings`` passes over frames of the import machinery, which it knows by their file's name. Not for functions
    that Dynamo traces: it refuses such frames.
    """
    function: Any = wrapper
    function.__code__ = function.__code__.replace(co_filename="<hotloop, hidden as importlib._bootstrap>")
    return wrapper


# -- loading --------------------------------------------------------------------------------------------------------


def wrap_loader_init(session: Session) -> Callable[[Call], Call]:
    """DataLoader.__init__: remember where it was built."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            session.remember_place(self)

        return unseen(__init__)

    return wrap


def wrap_loader_iter(session: Session) -> Callable[[Call], Call]:
    """DataLoader.__iter__: creating an iterator (workers start here) is waiting for input."""
    recorder, loading = session.recorder, session.loading

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def __iter__(self: Any) -> Any:
            if _ident() != session.active:
                return original(self)
            is_other = loading.iterator_begins(self)
            recorder.enter(OTHER_ITERATOR if is_other else ITERATOR)
            start_ns = recorder.last_ns
            try:
                iterator = original(self)
            finally:
                recorder.leave()
            recorder.row[ITERATORS] += 1
            loading.iterator_created(self, iterator, recorder.last_ns - start_ns)
            return iterator

        return __iter__

    return wrap


def wrap_loader_next(session: Session) -> Callable[[Call], Call]:
    """_BaseDataLoaderIter.__next__: waiting for the next batch."""
    recorder, loading, counting = session.recorder, session.loading, session.counting
    clock = recorder.clock

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def __next__(self: Any) -> Any:
            if _ident() != session.active:
                return original(self)
            stack = recorder.stack
            top = stack[-1]
            if top in _LOADING:  # a loader that reads another loader
                return original(self)
            if loading.iterator_ref() is not self or not recorder.quick:
                return _next_batch(session, original, self)
            start_ns = clock()
            recorder.row[top] += start_ns - recorder.last_ns
            recorder.last_ns = start_ns
            stack.append(INPUT)
            depth = len(stack)
            state: LoaderState = loading.state  # type: ignore[assignment]  # an iterator that is known has one
            try:
                batch = original(self)
            except StopIteration:
                loading.iterator_exhausted(state)
                recorder.unwind(depth - 1)
                raise
            except BaseException:
                recorder.unwind(depth - 1)
                raise
            now_ns = clock()
            stack = recorder.stack
            if not (len(stack) == depth == 2 and recorder.quick):
                recorder.unwind(depth - 1)
                loading.after_batch(state, batch, now_ns - start_ns)
                return batch
            row = recorder.row
            row[INPUT] += now_ns - recorder.last_ns
            recorder.last_ns = now_ns
            stack.pop()
            stack[0] = AFTER_INPUT
            if (
                row[BATCHES]
                or row[SAMPLES]
                or counting.direct_samples
                or counting.counted_row <= recorder.rows
                or first_shape(batch) != state.last_shape
                or loading.last_state is not state
            ):
                loading.after_batch(state, batch, now_ns - start_ns)
                return batch
            # The row's first batch, and of the same shape as the one before.
            state.batches += 1
            state.wait_ns += now_ns - start_ns
            row[BATCHES] = 1
            row[MICRO_BATCHES] += 1
            row[SAMPLES] = state.last_samples
            row[PADDED] = state.last_padded
            return batch

        return __next__

    return wrap


def _next_batch(session: Session, original: Call, iterator: Any) -> Any:
    """The next batch of a loader of which something is still to be found out, or in a row that is watched closely."""
    recorder, loading = session.recorder, session.loading
    state = loading.state if loading.iterator_ref() is iterator else loading.before_batch(iterator)
    recorder.enter(OTHER_INPUT if loading.is_surely_other(state) else INPUT)
    start_ns = recorder.last_ns
    try:
        batch = original(iterator)
    except StopIteration:
        loading.iterator_exhausted(state)
        raise
    finally:
        recorder.leave()
    loading.after_batch(state, batch, recorder.last_ns - start_ns)
    return batch


class _TimedCollate:
    """A collate function that remembers how long its last call took, in ns."""

    __slots__ = ("function", "last_ns")

    def __init__(self, function: Call) -> None:
        self.function = function
        self.last_ns = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start_ns = _clock()
        try:
            return self.function(*args, **kwargs)
        finally:
            self.last_ns = _clock() - start_ns


def wrap_fetcher_fetch(session: Session) -> Callable[[Call], Call]:
    """_MapDatasetFetcher.fetch and its iterable twin: reading the samples apart from collating them, batch by batch in
    a worker, in the training process one in four after the first ones and fewer after many."""
    loading = session.loading

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def fetch(self: Any, possibly_batched_index: Any) -> Any:
            if loading.fetches_to_skip > 0:
                loading.fetches_to_skip -= 1
                return original(self, possibly_batched_index)
            collate = self.collate_fn
            timed = self.collate_fn = _TimedCollate(collate)
            before = loading.before_draws()
            start_ns, start_busy_ns = _clock(), busy_ns()
            try:
                data = original(self, possibly_batched_index)
            finally:
                self.collate_fn = collate
            worked_ns, wall_ns = busy_ns() - start_busy_ns, _clock() - start_ns
            loading.batch_fetched(wall_ns - timed.last_ns, worked_ns, timed.last_ns)
            if before is not None:
                loading.after_draws(before)
            return data

        return fetch

    return wrap


# -- modules --------------------------------------------------------------------------------------------------------


def wrap_module_call(session: Session) -> Callable[[Call], Call]:
    """nn.Module.__call__: the outermost call is forward; nested ones leave after one comparison."""
    recorder = session.recorder
    clock, is_grad_enabled = recorder.clock, torch.is_grad_enabled

    def wrap(original: Call) -> Call:
        def __call__(*args: Any, **kwargs: Any) -> Any:
            if _is_dynamo_tracing():
                return original(*args, **kwargs)
            stack = recorder.stack
            top = stack[-1]
            if top in _FORWARDS and not session.learning:  # on whichever thread: nothing is timed in there
                return original(*args, **kwargs)
            if _tracing._is_compiling_flag or _ident() != session.active:
                return original(*args, **kwargs)
            module = args[0]
            key, cls = id(module), type(module)
            if not (
                recorder.quick
                and session.plain_forwards
                and top != BACKWARD
                and (
                    session.others.get(key) is cls
                    or (session.learners.get(key) is cls and session.last_root() is module and recorder.row[BATCHES])
                )
                and is_grad_enabled()
            ):
                return _call_module(session, original, *args, **kwargs)
            now_ns = clock()
            recorder.row[top] += now_ns - recorder.last_ns
            recorder.last_ns = now_ns
            stack.append(FORWARD)
            depth = len(stack)
            try:
                result = original(*args, **kwargs)
            except BaseException:
                recorder.unwind(depth - 1)
                raise
            now_ns = clock()
            stack, row = recorder.stack, recorder.row
            row[FORWARDS] += 1
            if len(stack) == depth == 2:
                row[FORWARD] += now_ns - recorder.last_ns
                recorder.last_ns = now_ns
                stack.pop()
                stack[0] = AFTER_FORWARD
            else:
                recorder.unwind(depth - 1)
            return result

        return functools.update_wrapper(__call__, original)

    return wrap


def _call_module(session: Session, original: Call, module: Any, *args: Any, **kwargs: Any) -> Any:
    """A module's call on the training thread: whatever it may be."""
    recorder = session.recorder
    stack = recorder.stack
    top = stack[-1]
    if top in _FORWARDS:
        if session.learning:
            session.nested_call(module, args)
        return original(module, *args, **kwargs)
    if session.preparing:
        return original(module, *args, **kwargs)
    if top == BACKWARD:
        return _call_in_backward(session, original, module, args, kwargs)
    if session.preparers and session.preparers.get(id(module)) is type(module):
        return _call_preparer(session, original, module, args, kwargs)
    if not torch.is_grad_enabled():
        if top == OPTIMIZER:  # a compiled optimizer's own graph
            return original(module, *args, **kwargs)
        return _call_nograd(session, original, module, args, kwargs)
    known = session.before_forward(module, args, kwargs)
    depth = len(stack)
    recorder.enter(FORWARD)
    try:
        result = original(module, *args, **kwargs)
    finally:
        recorder.unwind(depth)
    if known is not None:
        _add_repeated(recorder, known)
        session.after_repeat(module, result, recorder.last_ns - known)
    recorder.row[FORWARDS] += 1
    if session.newcomer is module:
        session.after_newcomer(args, kwargs, result, top)
    return result


def _call_preparer(session: Session, original: Call, module: Any, args: Any, kwargs: Any) -> Any:
    """A module that prepares the batch: its time stays with the loop's own code, where a function's would be."""
    session.preparing = True
    try:
        return original(module, *args, **kwargs)
    finally:
        session.preparing = False


def _call_nograd(session: Session, original: Call, module: Any, args: Any, kwargs: Any) -> Any:
    recorder = session.recorder
    gap = recorder.stack[-1]
    recorder.begin_nograd(not module.training)
    known = session.before_nograd(module, args, kwargs)
    depth = len(recorder.stack)
    recorder.enter(NOGRAD)
    try:
        result = original(module, *args, **kwargs)
    finally:
        recorder.unwind(depth)
    recorder.end_nograd()
    recorder.row[NOGRAD_FORWARDS] += 1
    if session.newcomer is module:
        session.after_newcomer(args, kwargs, result, gap)
    if known is not None:
        _add_repeated(recorder, known)
        recorder.row[REPEATED_NOGRAD] += 1
    return result


def _add_repeated(recorder: Recorder, start_ns: int) -> None:
    recorder.row[REPEATED] += 1
    recorder.row[REPEATED_NS] += recorder.last_ns - start_ns


def _call_in_backward(session: Session, original: Call, module: Any, args: Any, kwargs: Any) -> Any:
    """Activation checkpointing recomputes inside backward; only its outermost module is timed."""
    if session.in_recompute:
        return original(module, *args, **kwargs)
    session.in_recompute = True
    start_ns = _clock()
    try:
        return original(module, *args, **kwargs)
    finally:
        session.in_recompute = False
        row = session.recorder.row
        row[RECOMPUTE_NS] = max(0, row[RECOMPUTE_NS]) + _clock() - start_ns


# -- backward and optimizer -----------------------------------------------------------------------------------------


def wrap_run_backward(session: Session) -> Callable[[Call], Call]:
    """torch.autograd._engine_run_backward: the one function below every way to start a backward."""
    recorder, counting = session.recorder, session.counting
    clock = recorder.clock

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
            if _is_dynamo_tracing() or _tracing._is_compiling_flag:
                return original(*args, **kwargs)
            if _ident() != session.active and not session.claim_owner():
                return original(*args, **kwargs)
            stack = recorder.stack
            if BACKWARD in stack:
                return original(*args, **kwargs)
            retain_graph = len(args) > 2 and bool(args[2]) and not (len(args) > 3 and args[3])
            if (
                not recorder.quick
                or session.last_root is not session.recorded_root
                or counting.direct_samples
                or retain_graph
            ):
                return _run_backward(session, original, retain_graph, *args, **kwargs)
            now_ns = clock()
            recorder.row[stack[-1]] += now_ns - recorder.last_ns
            recorder.last_ns = now_ns
            stack.append(BACKWARD)
            depth = len(stack)
            try:
                result = original(*args, **kwargs)
            except BaseException:
                recorder.unwind(depth - 1)
                raise
            now_ns = clock()
            stack = recorder.stack
            if len(stack) == depth == 2 and recorder.pending_close is None:
                row = recorder.row
                row[BACKWARD] += now_ns - recorder.last_ns
                row[BACKWARDS] += 1
                recorder.last_ns = now_ns
                recorder.closes = 0
                stack.pop()
                stack[0] = AFTER_BACKWARD
            else:
                recorder.unwind(depth - 1)
                recorder.backward_ended(False)
            return result

        return _engine_run_backward

    return wrap


def _run_backward(session: Session, original: Call, retain_graph: bool, *args: Any, **kwargs: Any) -> Any:
    """The outermost backward, before which something is to be found out."""
    recorder = session.recorder
    session.before_backward()
    depth = len(recorder.stack)
    recorder.enter(BACKWARD)
    try:
        result = original(*args, **kwargs)
    finally:
        recorder.unwind(depth)
    recorder.backward_ended(retain_graph)
    return result


def wrap_optimizer_step(session: Session) -> Callable[[Call], Call]:
    """An optimizer class's step. Not torch's global hooks: Dynamo would trace those into a compiled step."""
    recorder = session.recorder
    clock = recorder.clock

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_dynamo_tracing() or _tracing._is_compiling_flag:
                return original(self, *args, **kwargs)
            if _ident() != session.active and not session.claim_owner():
                return original(self, *args, **kwargs)
            stack = recorder.stack
            index = recorder.optimizers.get(id(self))
            if args or kwargs or index is None or len(stack) != 1 or not recorder.quick:
                return _step_optimizer(session, original, self, args, kwargs)
            now_ns = clock()
            recorder.row[stack[0]] += now_ns - recorder.last_ns
            recorder.last_ns = now_ns
            stack.append(OPTIMIZER)
            try:
                result = original(self)
            except BaseException:
                recorder.unwind(1)
                raise
            if not session.plain_forwards:
                session.optimizer_steps[index] += 1
            if recorder.quick and len(recorder.stack) == 2:
                recorder.close_step(index)
            else:
                recorder.optimizer_ended(1, index)
            return result

        return step

    return wrap


def _step_optimizer(session: Session, original: Call, optimizer: Any, args: Any, kwargs: Any) -> Any:
    """A step that is given a closure, lies inside something else, or is an optimizer's first."""
    recorder = session.recorder
    if args or kwargs:
        args, kwargs = _with_timed_closure(recorder, args, kwargs)
    depth = len(recorder.stack)
    recorder.optimizer_began()
    try:
        result = original(optimizer, *args, **kwargs)
    except BaseException:
        recorder.unwind(depth)
        raise
    index = recorder.optimizers.get(id(optimizer))
    if index is None:
        index = session.optimizer_seen(optimizer)
    session.optimizer_steps[index] += 1
    recorder.optimizer_ended(depth, index)
    return result


def _with_timed_closure(recorder: Recorder, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a step, whose closure leaves the optimizer: what it does between its phases is not its work."""
    closure = args[0] if args else kwargs.get("closure")
    if not callable(closure):
        return args, kwargs

    def timed(*values: Any, **named: Any) -> Any:
        depth = len(recorder.stack)
        recorder.enter(OTHER)
        try:
            return closure(*values, **named)
        finally:
            recorder.unwind(depth)

    return ((timed, *args[1:]), kwargs) if args else (args, {**kwargs, "closure": timed})


def wrap_optimizer_init(session: Session) -> Callable[[Call], Call]:
    """Optimizer.__init__: remember where it was built."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            session.remember_place(self)
            session.patch_optimizer_class(type(self))

        return unseen(__init__)

    return wrap


def wrap_scaler_step(session: Session) -> Callable[[Call], Call]:
    """GradScaler.step: a step that it skips is a step all the same."""
    recorder = session.recorder

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if _ident() != session.active or not self.is_enabled():
                return original(self, optimizer, *args, **kwargs)
            depth = len(recorder.stack)
            recorder.scaler_began()
            try:
                result = original(self, optimizer, *args, **kwargs)
            finally:
                stepped = recorder.scaler_ended(depth)
            if not stepped:
                index = recorder.optimizers.get(id(optimizer))
                if index is None:
                    index = session.optimizer_seen(optimizer)
                recorder.step_skipped(index)
            return result

        return step

    return wrap


def wrap_scaler_work(session: Session) -> Callable[[Call], Call]:
    """GradScaler.unscale_ and update: the scaler's own work, charged to the optimizer."""
    recorder = session.recorder

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def work(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _ident() != session.active or OPTIMIZER in recorder.stack:
                return original(self, *args, **kwargs)
            depth = len(recorder.stack)
            gap = recorder.stack[0]
            recorder.enter(OPTIMIZER)
            start_ns = recorder.last_ns
            try:
                return original(self, *args, **kwargs)
            finally:
                recorder.unwind(depth)
                recorder.row[SCALER_NS] += recorder.last_ns - start_ns
                if depth == 1:
                    recorder.stack[0] = gap  # after unscale_ the gap is still the one after backward

        return work

    return wrap


def wrap_scaler_init(session: Session) -> Callable[[Call], Call]:
    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            session.scaler_built(self)

        return unseen(__init__)

    return wrap


# -- collectives, checkpoints, copies -------------------------------------------------------------------------------


def _wrap_phase(session: Session, field: int, counter: int) -> Callable[[Call], Call]:
    """A call that is a phase of its own wherever it happens, except inside itself."""
    recorder = session.recorder

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _is_dynamo_tracing() or _tracing._is_compiling_flag:
                return original(*args, **kwargs)
            if _ident() != session.active or recorder.stack[-1] == field or not recorder.last_ns:
                return original(*args, **kwargs)
            depth = len(recorder.stack)
            recorder.enter(field)
            try:
                return original(*args, **kwargs)
            finally:
                recorder.unwind(depth)
                recorder.row[counter] += 1
                if counter == COLLECTIVES:
                    session.collectives += 1
                else:
                    session.checkpoints += 1

        return call

    return wrap


def wrap_collective(session: Session) -> Callable[[Call], Call]:
    """A collective of torch.distributed that the training's code calls, and waiting for one."""
    return _wrap_phase(session, COMMUNICATION, COLLECTIVES)


def wrap_checkpoint(session: Session) -> Callable[[Call], Call]:
    """torch.save and its kin."""
    return _wrap_phase(session, CHECKPOINT, CHECKPOINTS)


def wrap_copy(session: Session) -> Callable[[Call], Call]:
    """Tensor.to, cuda and copy_ towards an accelerator; patched only where one exists."""
    recorder = session.recorder

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_dynamo_tracing() or _tracing._is_compiling_flag:
                return original(self, *args, **kwargs)
            if (
                _ident() != session.active
                or len(recorder.stack) != 1
                or self.device.type != "cpu"
                or not recorder.last_ns
            ):
                return original(self, *args, **kwargs)
            recorder.enter(H2D)
            try:
                return original(self, *args, **kwargs)
            finally:
                recorder.leave()

        return copy

    return wrap


def wrap_activation_checkpoint(session: Session) -> Callable[[Call], Call]:
    """Below torch.utils.checkpoint.checkpoint: note that it is used, and from where."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            session.checkpointing_seen()
            return original(*args, **kwargs)

        return call

    return wrap


def wrap_ddp_init(session: Session) -> Callable[[Call], Call]:
    """DistributedDataParallel.__init__: remember the object, its settings and where it was built."""

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            session.ddp_built(self)

        return unseen(__init__)

    return wrap


def wrap_compile(session: Session) -> Callable[[Call], Call]:
    """torch.compile: a compiled function (not a module, which is seen anyway) counts as forward when called."""
    recorder = session.recorder
    is_grad_enabled = torch.is_grad_enabled

    def timed(function: Call) -> Call:
        @functools.wraps(function)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            if _is_dynamo_tracing() or _tracing._is_compiling_flag:
                return function(*args, **kwargs)
            if _ident() != session.active or len(recorder.stack) != 1:
                return function(*args, **kwargs)
            if not is_grad_enabled() or not recorder.last_ns:
                return function(*args, **kwargs)
            recorder.enter(FORWARD)
            try:
                return function(*args, **kwargs)
            finally:
                recorder.unwind(1)

        return compiled

    def wrap(original: Call) -> Call:
        @functools.wraps(original)
        def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            if _is_dynamo_tracing() or _tracing._is_compiling_flag:
                return original(model, *args, **kwargs)
            session.compile_called()
            result = original(model, *args, **kwargs)
            if model is None:
                return lambda target: _finish(target, result(target))
            return _finish(model, result)

        def _finish(target: Any, result: Any) -> Any:
            if isinstance(target, torch.nn.Module) or not callable(result) or isinstance(result, type):
                return result
            if getattr(target, "__func__", None) is not None and isinstance(target.__self__, torch.optim.Optimizer):
                return result
            return timed(result)

        return compile

    return wrap


def gc_callback(session: Session) -> Call:
    """For gc.callbacks: time spent collecting garbage, on any thread."""
    started_ns = 0

    def on_collection(phase: str, info: dict[str, int]) -> None:
        nonlocal started_ns
        if phase == "start":
            started_ns = _clock()
        elif started_ns:
            session.garbage_collected(_clock() - started_ns, info.get("generation", 0))
            started_ns = 0

    return on_collection
