"""A model, its batches and an optimizer -> the time of data, forward, backward, optimizer and full step, each alone.

Everything that the measurement changes is put back, bit for bit: weights, gradients, buffers, optimizer state, random
states, modes and the loader.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hotloop.change.apply.device_batches import leaves, move_batch

FEWEST_BLOCKS = 3
KEPT_BATCHES = 4
"""Number of batches that the compute parts cycle through."""


@dataclass(frozen=True)
class PartTime:
    """One part alone: ``n`` timings in ``blocks`` blocks that took turns with those of the other parts."""

    part: str
    min_ns: int
    median_ns: int
    n: int
    blocks: int


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes. ``saved_bytes`` is what forward keeps for backward; ``peak_bytes`` (accelerators only) holds all of it."""

    parameters_bytes: int
    buffers_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    saved_bytes: int
    peak_bytes: int | None


@dataclass(frozen=True)
class TrainingBenchmark:
    """``notes`` list assumptions, and what could not be put back or measured."""

    device: str
    batch_size: int | None
    optimizer: str
    parts: tuple[PartTime, ...]
    memory: TrainingMemory
    notes: tuple[str, ...]


def benchmark_training(
    model: Any,
    loader: Any,
    device: Any = None,
    *,
    optimizer: Any = None,
    loss: Callable[[Any, Any], Any] | None = None,
    budget_s: float = 10.0,
) -> TrainingBenchmark:
    """Time the parts of a training step alone on this model and these batches, and put everything back.

    A batch is what the model takes: a tensor; a tuple whose last element is the target of ``loss(output, target)``; or
    a dictionary of keyword arguments. Without ``loss`` the output's own ``loss`` is used, else the mean of its squares.
    Without ``optimizer``, an AdamW is created for the measurement. The model must be on ``device`` already (None: where
    it is). Inside DDP, all ranks must call it; compute is then timed with and without synchronization.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no trainable parameter; give a model with trainable parameters")
    place = torch.device(device) if device is not None else parameters[0].device
    elsewhere = next((p.device for p in parameters if p.device.type != place.type), None)
    if elsewhere is not None:
        raise ValueError(f"the model is on {elsewhere}, not on {place}; move it there first: model.to({str(place)!r})")
    notes = []
    with _kept(model, optimizer, loader, place):
        for p in parameters:
            p.grad = None
        model.train()
        if optimizer is None:
            optimizer = torch.optim.AdamW(parameters)
            notes.append("no optimizer was given: AdamW with torch's defaults was timed")
        if loss is None:
            notes.append("no loss was given: the output's loss was used, or else the mean of its squares")
        return _measure(model, loader, place, optimizer, loss, budget_s, parameters, notes)


def _measure(
    model: Any,
    loader: Any,
    device: Any,
    optimizer: Any,
    loss: Callable[[Any, Any], Any] | None,
    budget_s: float,
    parameters: list[Any],
    notes: list[str],
) -> TrainingBenchmark:
    data = _Batches(loader)
    raw = [data.take() for _ in range(KEPT_BATCHES)]
    batches = itertools.cycle([_move(batch, device) for batch in raw])

    def compute_loss(take: Callable[[], Any] = batches.__next__) -> Any:
        return loss_of(model, take(), loss)

    is_parallel = hasattr(model, "no_sync") and hasattr(model, "require_backward_grad_sync")
    parts = _list_parts(model, data, raw[0], device, optimizer, compute_loss, is_parallel)
    memory = _measure_memory(model, optimizer, parameters, compute_loss, device)
    seen, blocks = _time_parts(parts, data, budget_s, is_parallel)
    if data.restarts:
        notes.append(f"the loader was started {data.restarts + 1} times; its start-up is not included in any figure")
    if data.queue:
        notes.append(f"data: {data.queue} prefetched batches were drawn before each block")
    return TrainingBenchmark(
        device=str(device),
        batch_size=_batch_size(raw[0]),
        optimizer=type(optimizer).__name__,
        parts=tuple(
            PartTime(part=name, min_ns=min(values), median_ns=round(statistics.median(values)), n=len(values),
                     blocks=blocks)
            for name, values in seen.items()
        ),
        memory=memory,
        notes=tuple(notes),
    )  # fmt: skip


def _list_parts(
    model: Any,
    data: _Batches,
    first: Any,
    device: Any,
    optimizer: Any,
    compute_loss: Callable[..., Any],
    is_parallel: bool,
) -> dict[str, Callable[[], int]]:
    """Each part of a step as a call that runs it once and returns its ns."""
    clock = _Clock(device)

    def train(*take: Callable[[], Any]) -> None:
        compute_loss(*take).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def time_backward() -> int:
        spent = clock.time(compute_loss().backward)
        optimizer.zero_grad(set_to_none=True)
        return spent

    def time_optimizer() -> int:
        compute_loss().backward()
        spent = clock.time(optimizer.step)
        optimizer.zero_grad(set_to_none=True)
        return spent

    def time_without_sync() -> int:
        with model.no_sync():
            return clock.time(train)

    parts: dict[str, Callable[[], int]] = {"data": lambda: clock.time(data.take)}
    if device.type != "cpu":
        parts["copy to device"] = lambda: clock.time(lambda: _move(first, device))
    parts |= {"forward": lambda: clock.time(compute_loss), "backward": time_backward, "optimizer": time_optimizer}
    parts["compute"] = lambda: clock.time(train)
    if is_parallel:
        parts["compute without sync"] = time_without_sync
    parts["whole step"] = lambda: clock.time(lambda: train(lambda: _move(data.take(), device)))
    return parts


def _time_parts(
    parts: Mapping[str, Callable[[], int]], data: _Batches, budget_s: float, is_parallel: bool
) -> tuple[dict[str, list[int]], int]:
    """All timings of every part, in ns, and the number of blocks in which the parts took turns."""
    for part in parts.values():  # what happens only once: buffers, autotuning, compilation
        part()
        part()
    started = time.perf_counter()
    first = {name: part() for name, part in parts.items()}
    # Ranks must make the same calls: their budgets must not differ by what each of them measures.
    each = 4 if is_parallel else max(1, min(50, round(0.02e9 / max(1, statistics.median(first.values())))))
    seen: dict[str, list[int]] = {name: [] for name in parts}
    blocks = 0
    while blocks < FEWEST_BLOCKS or (
        blocks < (FEWEST_BLOCKS if is_parallel else 40) and time.perf_counter() - started < budget_s
    ):
        blocks += 1
        for name, part in parts.items():
            if name in ("data", "whole step"):
                data.drain()
            seen[name] += [part() for _ in range(each)]
    return seen, blocks


class _Clock:
    """Wall time of a call and of the device work that it started."""

    def __init__(self, device: Any) -> None:
        backend = None if device.type == "cpu" else getattr(torch, device.type, None)
        self._wait: Callable[[], Any] = getattr(backend, "synchronize", lambda: None)

    def time(self, call: Callable[[], Any]) -> int:
        self._wait()
        start = time.perf_counter_ns()
        call()
        self._wait()
        return time.perf_counter_ns() - start


class _Batches:
    """Batches of a copy of the loader, without end; a caller's timings do not include restarts."""

    def __init__(self, loader: Any) -> None:
        # A copy: workers that the user's own loader keeps are not disturbed.
        self._loader = copy.copy(loader)
        if "_iterator" in vars(self._loader):
            self._loader._iterator = None
        workers = getattr(loader, "num_workers", 0) or 0
        self.queue = workers * (getattr(loader, "prefetch_factor", None) or 2) if workers else 0
        self.restarts = 0
        self._next: Any = None
        self._iterator: Iterator[Any] = iter(self._loader)
        self._fill()

    def _fill(self) -> None:
        try:
            self._next = next(self._iterator)
        except StopIteration:
            raise ValueError("the loader is empty; give a loader that yields batches") from None

    def take(self) -> Any:
        try:
            value = next(self._iterator)
        except StopIteration:
            self.restarts += 1
            self._iterator = iter(self._loader)
            return self._next
        self._next = value
        return value

    def drain(self) -> None:
        """Draw what workers prepared between blocks: otherwise a block would time an already full queue."""
        for _ in range(self.queue):
            self.take()


def _measure_memory(
    model: Any, optimizer: Any, parameters: list[Any], compute_loss: Callable[[], Any], device: Any
) -> TrainingMemory:
    backend = getattr(torch, device.type, None) if device.type != "cpu" else None
    reset = getattr(backend, "reset_peak_memory_stats", None)
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    saved: dict[int, int] = {}

    def note(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    compute_loss().backward()  # the optimizer's state exists from here on
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if reset is not None:
        reset(device)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        value = compute_loss()
    value.backward()
    gradients = sum(p.grad.nbytes for p in parameters if p.grad is not None)
    optimizer.step()
    peak = backend.max_memory_allocated(device) if backend is not None and reset is not None else None
    state = sum(
        one.nbytes for held in optimizer.state.values() for one in held.values() if isinstance(one, torch.Tensor)
    )
    optimizer.zero_grad(set_to_none=True)
    return TrainingMemory(
        parameters_bytes=sum(p.nbytes for p in model.parameters()),
        buffers_bytes=sum(b.nbytes for b in model.buffers()),
        gradients_bytes=gradients,
        optimizer_state_bytes=state,
        saved_bytes=sum(saved.values()),
        peak_bytes=peak,
    )


def loss_of(model: Any, batch: Any, loss: Callable[[Any, Any], Any] | None) -> Any:
    if isinstance(batch, dict):
        output, target = model(**batch), None
    elif isinstance(batch, (list, tuple)):
        inputs = batch[:-1] if len(batch) > 1 else batch
        output, target = model(*inputs), batch[-1]
    else:
        output, target = model(batch), None
    if loss is not None:
        return loss(output, target)
    own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    return own if own is not None else _mean_square(output)


def _mean_square(output: Any) -> Any:
    found = [t for t in leaves(output) if isinstance(t, torch.Tensor) and t.is_floating_point() and t.requires_grad]
    if not found:
        raise ValueError(f"the model's output ({type(output).__name__}) contains no tensor with gradients; give a loss")
    return sum(t.float().square().mean() for t in found)


def _move(batch: Any, device: Any) -> Any:
    return move_batch(batch, lambda leaf: leaf.to(device, non_blocking=True))


def _batch_size(batch: Any) -> int | None:
    first = next((t for t in leaves(batch) if hasattr(t, "shape") and len(t.shape) > 0), None)
    return None if first is None else int(first.shape[0])


@contextlib.contextmanager
def _kept(model: Any, optimizer: Any, loader: Any, device: Any) -> Iterator[None]:
    """Whatever happens inside, everything is restored afterwards: the same objects with the same bits."""
    # An optimizer may step parameters that are not the model's, and a forward may put new objects in a module's names.
    groups = [] if optimizer is None else optimizer.param_groups
    mappings = [names for module in model.modules() for names in (module._parameters, module._buffers)]
    if optimizer is not None:
        mappings += [vars(optimizer), optimizer.state, *optimizer.state.values(), *groups]
    held = [(mapping, dict(mapping.items())) for mapping in mappings]
    parameters = _distinct([*model.parameters(), *(p for group in groups for p in group["params"])])
    values = [one for _, before in held for one in before.values() if isinstance(one, torch.Tensor)]
    bits = [(tensor, tensor.detach().clone()) for tensor in _distinct([*parameters, *values])]
    gradients = [(p, p.grad, None if p.grad is None else p.grad.detach().clone()) for p in parameters]
    modes = [(module, module.training) for module in model.modules()]
    owners = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    generators = [one for owner in owners if isinstance(one := getattr(owner, "generator", None), torch.Generator)]
    states = [(generator, generator.get_state()) for generator in generators]
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    python_state = random.getstate()
    is_cpu = device.type == "cpu"
    try:
        with torch.random.fork_rng([] if is_cpu else [device], device_type="cuda" if is_cpu else device.type):
            yield
    finally:
        for mapping, before in held:
            _put_back(mapping, before)
        with torch.no_grad():
            for tensor, value in bits:
                tensor.copy_(value)
            for p, gradient, value in gradients:
                p.grad = gradient
                if gradient is not None:
                    gradient.copy_(value)
        for module, mode in modes:
            module.training = mode
        for generator, state in states:
            generator.set_state(state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        random.setstate(python_state)


def _distinct(tensors: list[Any]) -> list[Any]:
    return list({id(t): t for t in tensors}.values())


def _put_back(now: Any, before: dict[Any, Any]) -> None:
    """The entries of a mapping as they were; an unchanged entry may not be writable (a scripted module's)."""
    if list(now.keys()) != list(before) or any(now[name] is not one for name, one in before.items()):
        now.clear()
        now.update(before)
