"""A data set -> batches in the order of a DataLoader, made by as many workers as pay at the moment."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
import weakref
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import _utils as data_utils
from torch.utils.data import dataloader as torch_loader

from hotloop.apply.applier import make_context
from hotloop.apply.loader_samples import alike, fingerprint, leaves, moved, random_states
from hotloop.core.errors import UsageError
from hotloop.core.host_memory import read_free_bytes, read_private_bytes
from hotloop.core.strategy import Strategy
from hotloop.core.worker_model import MOST_WORKERS_COUNT
from hotloop.train.fetch_pool import (
    FetchPool,
    LoaderRecipe,
    MadeBatch,
    Making,
    Task,
    make_outcome,
    seed_of_batch,
    seeded,
)
from hotloop.train.loader import can_pin
from hotloop.train.random_state import decode_state, encode_state, read_generators, restore_generators
from hotloop.train.worker_control import WorkerChange, WorkerControl

LOADER_SCHEMA = "hotloop.loader/1"
KINDS = ("process", "thread")
MEMORY_RATIO = 0.25
"""Part of the free memory that batches made ahead, and what workers hold beside them, may take."""
_LOOK_S = 5.0
_MOST_MISSES = 2
"""Passes that were begun ahead in vain before none is any more."""

_ORDER_ATTRIBUTES = ("seed", "shuffle", "replacement", "num_replicas", "ranks", "rank", "mega_batches")
"""What of torch's samplers and of hotloop's decides their order."""

_BaseDataLoaderIter: Any = torch_loader._BaseDataLoaderIter


class AdaptiveLoader(DataLoader[Any]):
    """A DataLoader that adds and retires workers while it runs, so that the loop waits as little as it can.

    It takes a DataLoader's arguments (``num_workers`` apart) and stands in its place. It begins without workers,
    measures, and then tries what the cost model proposes; a number of workers stays only if the loop was faster with
    it. ``worker_changes`` tells what was tried, and why.

    >>> loader = AdaptiveLoader(list(range(8)), batch_size=4, shuffle=False)
    >>> [batch.tolist() for batch in loader], len(loader)
    ([[0, 1, 2, 3], [4, 5, 6, 7]], 2)

    **Order and random draws** do not depend on the number of workers. Batches come in the sampler's order
    (``in_order=False``: as they are ready). The main process draws what it draws with ``num_workers=0``: the seed of
    the pass, then the sampler's. Every batch is made with torch, random and numpy seeded by that seed and the batch's
    number in the pass, so samples draw other numbers than in a DataLoader, and the same in 0 or 16 workers.

    **Resume**: ``state_dict()`` after any batch, ``load_state_dict`` in a new process, and the next pass begins with
    the batch that the loop had not had; only indices are skipped, no sample is read. The Trainer resumes by itself.

    ``workers_kind="thread"`` makes batches in threads of this process, for data sets that release the interpreter lock
    (storage, network, decoders): they start at once and copy nothing. Their samples must draw nothing from the
    process's own generators; that is checked on the first batches.

    ``max_workers``: at most so many; by default this process's share of the cores, and up to 16 where loading waits for
    storage. What batches made ahead and workers hold is bounded by a quarter of the memory that is free.

    Refused: an IterableDataset, whose position is not this process's. Like a DataLoader's workers, these see the data
    set as it was when they started; a change of its attributes between two passes starts new ones.
    """

    chooses_workers = True
    """For hotloop's own recording: ``num_workers`` says nothing of this loader."""

    def __init__(
        self,
        dataset: Any,
        *,
        workers_kind: str = "process",
        max_workers: int | None = None,
        prefetch_factor: int = 2,
        in_order: bool = True,
        multiprocessing_context: Any = None,
        **arguments: Any,
    ) -> None:
        _check(dataset, workers_kind, max_workers, prefetch_factor, arguments)
        arguments.pop("persistent_workers", None)
        super().__init__(dataset, **arguments)
        self.batches_ahead = prefetch_factor
        self.in_order = in_order
        self.workers_kind = workers_kind
        self.max_workers = max_workers
        self.start_method = _method_of(multiprocessing_context)
        context = make_context(Strategy(), from_outside=False)
        share = max(1.0, context.cores / max(1, context.local_world_size))
        most = MOST_WORKERS_COUNT if max_workers is None else max_workers
        self._live = _Live(WorkerControl(most=most, cores=share))

    @property
    def worker_changes(self) -> tuple[WorkerChange, ...]:
        """The latest changes of the number of workers, in order."""
        return tuple(self._live.control.changes)

    @property
    def workers_count(self) -> int:
        """Workers at present."""
        return 0 if self._live.pool is None else self._live.pool.alive_count()

    def close(self) -> None:
        """End the workers; the next pass starts new ones. Happens by itself when the loader is no longer used."""
        live = self._live
        live.next_pass = None
        if live.pool is not None:
            live.pool.close()
            live.pool = None

    def with_batches(self, batch_sampler: Any) -> AdaptiveLoader:
        """The same loader with its batches in another order, and with a generator of its own."""
        return AdaptiveLoader(
            self.dataset,
            workers_kind=self.workers_kind,
            max_workers=self.max_workers,
            prefetch_factor=self.batches_ahead,
            in_order=self.in_order,
            multiprocessing_context=self.start_method,
            batch_sampler=batch_sampler,
            collate_fn=self.collate_fn,
            pin_memory=self.pin_memory,
            timeout=self.timeout,
            worker_init_fn=self.worker_init_fn,
            generator=torch.Generator(),
        )

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is, as a JSON value: after the batch that it had last."""
        current = self._live.current
        if current is None or current.is_over:
            if self._live.resumed is not None:
                return self._live.resumed
            return {"schema": LOADER_SCHEMA, "loader": _facts_of(self), "position": None}
        place = {"schema": LOADER_SCHEMA, "loader": _facts_of(self), "position": current.delivered_count}
        return {**place, **current.begun_with, **current.gaps()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass go on from there. UsageError for what is not the state of a loader like this one."""
        if not isinstance(state, dict) or state.get("schema") != LOADER_SCHEMA:
            found = state.get("schema") if isinstance(state, dict) else type(state).__name__
            raise UsageError(f"this is not a state of an AdaptiveLoader ({LOADER_SCHEMA}): {found!r}")
        kept, here = state.get("loader"), _facts_of(self)
        if not isinstance(kept, dict) or "position" not in state:
            raise UsageError("this state of an AdaptiveLoader is damaged; give what state_dict() returned")
        names = [name for name in {**here, **kept} if kept.get(name) != here.get(name)]
        if names:
            raise UsageError(
                "the state belongs to another loader: "
                + ", ".join(f"{name} is {kept.get(name)!r} there and {here.get(name)!r} here" for name in names)
                + "; build the loader as it was, or begin without the state"
            )
        self._live.current = None
        self._live.resumed = None if state["position"] is None else state

    def _get_iterator(self) -> Any:
        live = self._live
        look = fingerprint(self.dataset)
        if live.pool is not None and (live.dataset_look != look or live.pool.closed or live.pid != os.getpid()):
            self.close()
        if live.pool is None:
            live.pool, live.pid, live.dataset_look = self._make_pool(), os.getpid(), look
            weakref.finalize(self, live.pool.close)
        ahead, live.next_pass = live.next_pass, None
        made: _AdaptivePass | None = None
        if ahead is not None:
            made = ahead.claim(self)
            if made is None:
                live.misses += 1
                live.expects_next_epoch = not live.expects_next_epoch
        live.current = made or _open_pass(self, live.resumed)
        live.resumed = None
        return live.current

    def _make_pool(self) -> FetchPool:
        recipe = LoaderRecipe(
            dataset=self.dataset,
            collate_fn=self.collate_fn,
            is_batched=self._auto_collation,
            init=self.worker_init_fn,
        )
        finish = _pin if self.pin_memory and can_pin() else _as_it_is
        context = multiprocessing.get_context(self.start_method)
        return FetchPool(recipe, self.workers_kind, context, finish)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_live": _Live(self._live.control.renewed())}


class _Live:
    """What of a loader belongs to this process, and is not copied with it."""

    def __init__(self, control: WorkerControl) -> None:
        self.control = control
        self.pool: FetchPool | None = None
        self.pid = 0
        self.dataset_look: Any = None
        self.current: _AdaptivePass | None = None
        self.next_pass: _Ahead | None = None
        self.misses = 0
        self.expects_next_epoch = True
        self.resumed: dict[str, Any] | None = None
        self.memory = _Memory()


class _AdaptivePass(_BaseDataLoaderIter):  # type: ignore[misc]
    """One pass. The base class opens the sampler and draws the pass's seed, as it does without workers."""

    def __init__(self, loader: AdaptiveLoader) -> None:
        super().__init__(loader)
        pass_seed: Any = getattr(loader.batch_sampler, "pass_seed", self._base_seed)
        self._pass_seed = int(pass_seed)
        self.begun_with: dict[str, Any] = {}
        self.delivered_count = 0
        self.is_over = False
        self._loader = loader
        self._live = loader._live
        self._pool: FetchPool = loader._live.pool  # type: ignore[assignment]
        self._first = int(getattr(loader.batch_sampler, "batches_before", 0))
        """The number of the pass's first batch: of the whole epoch, where the order begins in its midst."""
        self._tasks: dict[int, Task] = {}
        self._arrived: dict[int, MadeBatch] = {}
        self._issued = 0
        self._done: set[int] = set()
        """Numbers delivered beyond the first that was not."""
        self._skipped: frozenset[int] = frozenset()
        self._is_exhausted = False
        self._making = Making(self._pool.recipe)
        self._checks_left = 4 if loader.workers_kind == "thread" else 0
        self._last_s: float | None = None
        self._last_cpu_s = 0.0
        self._number = 0
        self._profile_name = "enumerate(DataLoader)#AdaptiveLoader.__next__"

    # -- order ---------------------------------------------------------------------------------------------------------

    def skip(self, position: int, delivered: frozenset[int]) -> None:
        """Go past what a loop had before; only indices are drawn."""
        for _ in range(position):
            next(self._sampler_iter)
        self._issued = self.delivered_count = position
        self._skipped = delivered
        self._done = set(delivered)

    def owed_count(self) -> int:
        """Batches that are to be made, or wait for the loop."""
        return len(self._tasks)

    def gaps(self) -> dict[str, list[int]]:
        """For a state: what was delivered out of order, beyond the first batch that was not."""
        return {"delivered": sorted(self._done)}

    def issue(self) -> None:
        """Give the workers what they may make ahead: so many batches each, within the memory."""
        ahead = self.ahead_count()
        while len(self._tasks) < ahead and self.issue_next():
            pass
        if self._is_exhausted and self._pool.wanted and self._live.misses < _MOST_MISSES:
            if self._live.next_pass is None:
                self._live.next_pass = _Ahead(self._loader)
            self._live.next_pass.issue(ahead - len(self._tasks))

    def issue_next(self) -> bool:
        """Draw the indices of one more batch and let it be made; False where the sampler has no more."""
        if self._is_exhausted:
            return False
        try:
            indices = next(self._sampler_iter)
        except StopIteration:
            self._is_exhausted = True
            return False
        number = self._issued
        self._issued += 1
        if number in self._skipped:
            return True
        task = Task(weakref.ref(self), number, seed_of_batch(self._pass_seed, self._first + number), indices)
        self._tasks[number] = task
        self._pool.submit(task)
        return True

    def ahead_count(self) -> int:
        workers = self._pool.wanted
        if not workers:
            return 1
        return max(1, min(self._loader.batches_ahead * workers, self._live.memory.batches_count(self._pool)))

    # -- for the pool's threads ----------------------------------------------------------------------------------------

    def accept(self, number: int, outcome: MadeBatch) -> None:
        """The pool's lock is held."""
        if not self.is_over:
            self._arrived[number] = outcome

    # -- for the loop --------------------------------------------------------------------------------------------------

    def _next_data(self) -> Any:
        begin_s, begin_cpu_s = time.monotonic(), time.process_time()
        if self.is_over:
            raise StopIteration
        if self._pool.closed:
            raise UsageError("the loader was closed, or began another pass with new workers, while this pass ran")
        self.issue()
        if not self._tasks:
            self.end()
            raise StopIteration
        try:
            outcome = self._wait()
        except BaseException:
            self._last_s = None
            raise
        self._count_delivered()
        self._steer(outcome, begin_s, begin_cpu_s)
        outcome.raise_error()
        return outcome.batch

    def _wait(self) -> MadeBatch:
        """The next batch: from a worker, or made here where no worker has begun it and none is ready."""
        pool = self._pool
        until_s = time.monotonic() + self._timeout if self._timeout > 0 else None
        with pool.lock:
            while True:
                number = min(self._tasks) if self._loader.in_order else next(iter(self._arrived), min(self._tasks))
                self._number = number
                if number in self._arrived:
                    del self._tasks[number]
                    return self._arrived.pop(number)
                failure, pool.failure = pool.failure, None
                if failure is not None:
                    failure.raise_error()
                if not pool.ready_count() and pool.take_back(self._tasks[number]):
                    task = self._tasks.pop(number)
                    break
                left_s = None if until_s is None else until_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise RuntimeError(f"batch {number} did not arrive within timeout={self._timeout} s")
                pool.arrived.wait(left_s)
        return self._make_here(task)

    def _make_here(self, task: Task) -> MadeBatch:
        before = random_states() if self._checks_left else None
        with seeded(task.seed):
            if before is not None:
                before = random_states()
            outcome = make_outcome(self._making, task)
            drawn = () if before is None else tuple(sorted(moved(before, random_states())))
        if drawn:
            raise UsageError(
                f"samples draw from the global generator of {', '.join(drawn)}, which threads of a process share: use "
                "workers_kind='process', or a generator that the data set makes for each sample"
            )
        self._checks_left = max(0, self._checks_left - 1)
        return self._pinned(outcome)

    def _pinned(self, outcome: MadeBatch) -> MadeBatch:
        if outcome.error is not None:
            return outcome
        return MadeBatch(self._pool.finish(outcome.batch), None, outcome.cost)

    def _count_delivered(self) -> None:
        self._done.add(self._number)
        while self.delivered_count in self._done:
            self._done.remove(self.delivered_count)
            self.delivered_count += 1

    def _steer(self, outcome: MadeBatch, begin_s: float, begin_cpu_s: float) -> None:
        """Tell the control of this batch, and follow it."""
        control, now_s = self._live.control, time.monotonic()
        if self._last_s is not None:
            compute_s, compute_cpu_s = begin_s - self._last_s, begin_cpu_s - self._last_cpu_s
            control.note(wait_s=now_s - begin_s, compute_s=compute_s, compute_cpu_s=compute_cpu_s, cost=outcome.cost)
            if not self._live.memory.batch_bytes and outcome.batch is not None:
                self._live.memory.batch_bytes = _bytes_of(outcome.batch)
            wanted = control.choose(
                self._pool.staying_count(), most=self._live.memory.workers_count(self._pool, self._loader.batches_ahead)
            )
            if wanted != self._pool.wanted:
                self._pool.resize(wanted)
        self._last_s, self._last_cpu_s = time.monotonic(), time.process_time()

    def end(self) -> None:
        """Nothing more will be asked of this pass."""
        if os.getpid() != self._live.pid:  # a copy in a forked process, where the lock may be held for ever
            return
        with self._pool.lock:
            self.is_over = True
            self._arrived.clear()
            self._tasks.clear()
            self._pool.forget(self)
        self._making.close()

    def __del__(self) -> None:
        if getattr(self, "_making", None) is not None and not self.is_over:
            self.end()


class _Ahead:
    """The pass after the present one, begun before the loop asks for it.

    The loop gets it if it would have begun the same one: the generators that it drew from stand where they stood, and
    the sampler has the attributes that were expected. Until then those generators are put back after every draw.
    """

    def __init__(self, loader: AdaptiveLoader) -> None:
        self._loader = weakref.ref(loader)
        self._before = _states_of(loader)
        self._now: dict[str, Any] = {}
        """Where the generators that the pass drew from would stand."""
        samplers: list[Any] = [one for one in (loader.batch_sampler, loader.sampler) if hasattr(one, "__dict__")]
        attributes = [(one, dict(vars(one))) for one in samplers]
        if loader._live.expects_next_epoch:
            for one in samplers:
                if callable(getattr(one, "set_epoch", None)) and isinstance(getattr(one, "epoch", None), int):
                    one.set_epoch(one.epoch + 1)
        self._look = _look_of(loader)
        try:
            self.made = _open_pass(loader, None)
            self.made.issue_next()  # samplers draw their order, and read their epoch, at the first index
        finally:
            self._note_draws(loader, self._before)
            for one, values in attributes:
                vars(one).update(values)

    def issue(self, count: int) -> None:
        """Let so many of its batches be made, those that are under way counted."""
        loader = self._loader()
        if loader is None or self.made.owed_count() >= count:
            return
        here = _states_of(loader)
        _put_states(loader, self._now)
        try:
            while self.made.owed_count() < count and self.made.issue_next():
                pass
        finally:
            self._note_draws(loader, here)

    def claim(self, loader: AdaptiveLoader) -> _AdaptivePass | None:
        """The pass, with its generators as it left them; None where it is not what the loop would begin now."""
        here = _states_of(loader)
        stands = all(name in here and alike(here[name], self._before[name]) for name in self._now)
        if stands and loader._live.resumed is None and _look_of(loader) == self._look:
            _put_states(loader, self._now)
            return self.made
        self.made.end()
        return None

    def _note_draws(self, loader: AdaptiveLoader, here: dict[str, Any]) -> None:
        """Keep where the generators that moved came to, and put all back to ``here``."""
        for name, state in _states_of(loader).items():
            if name in here and (name in self._now or not alike(state, here[name])):
                self._now[name] = state
        _put_states(loader, {name: here[name] for name in self._now if name in here})


class _Memory:
    """What is free, read every few seconds, and how many batches and workers fit in."""

    def __init__(self) -> None:
        self.batch_bytes = 0
        self._free_bytes: int | None = None
        self._worker_bytes = 0
        self._next_s = 0.0

    def _look(self, pool: FetchPool) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LOOK_S
        self._free_bytes = read_free_bytes()
        pids = pool.pids()
        self._worker_bytes = (read_private_bytes(pids[0]) or 0) if pids else 0

    def batches_count(self, pool: FetchPool) -> int:
        """Batches that may be made ahead."""
        self._look(pool)
        if self._free_bytes is None or not self.batch_bytes:
            return sys.maxsize
        return int(MEMORY_RATIO * self._free_bytes / self.batch_bytes)

    def workers_count(self, pool: FetchPool, batches_ahead: int) -> int | None:
        """Workers that fit, those that run counted; None: no bound is known."""
        self._look(pool)
        each = self._worker_bytes + batches_ahead * self.batch_bytes
        if self._free_bytes is None or not each:
            return None
        return int((MEMORY_RATIO * self._free_bytes + pool.alive_count() * each) / each)


def _check(dataset: Any, kind: str, most: int | None, prefetch: int, arguments: dict[str, Any]) -> None:
    if isinstance(dataset, IterableDataset):
        raise UsageError(
            f"{type(dataset).__name__} is an IterableDataset, which keeps its position itself, so AdaptiveLoader "
            "cannot keep its order; use DataLoader, or a data set with __getitem__ and __len__"
        )
    if kind not in KINDS:
        raise UsageError(f"workers_kind={kind!r}: write one of {', '.join(KINDS)}")
    for name, value, least in (("max_workers", most, 0), ("prefetch_factor", prefetch, 1)):
        if value is not None and (not isinstance(value, int) or value < least):
            raise UsageError(f"{name}={value!r}: write a whole number from {least} on")
    if "num_workers" in arguments:
        raise UsageError("AdaptiveLoader chooses num_workers itself; max_workers bounds it")


def _method_of(given: Any) -> str:
    if given is not None:
        return str(given if isinstance(given, str) else given.get_start_method())
    by_script = multiprocessing.get_start_method(allow_none=True)
    return by_script or ("fork" if sys.platform == "linux" else "spawn")


def _as_it_is(batch: Any) -> Any:
    return batch


def _pin(batch: Any) -> Any:
    return data_utils.pin_memory.pin_memory(batch)  # type: ignore[no-untyped-call]


def _bytes_of(batch: Any) -> int:
    tensors = (one for one in leaves(batch) if isinstance(one, torch.Tensor))
    return sum(one.numel() * one.element_size() for one in tensors)


# -- what decides the order of a pass ----------------------------------------------------------------------------------


def _open_pass(loader: AdaptiveLoader, resumed: dict[str, Any] | None) -> _AdaptivePass:
    """A pass from its beginning, or from where a state says; the process's own generators then stand as before."""
    if resumed is None:
        begun_with = _begin_of(loader)
        made = _AdaptivePass(loader)
        made.begun_with = begun_with
        return made
    here = read_generators()
    restore_generators(resumed["generators"])
    for name, one in _own_generators(loader).items():
        if name in resumed["own_generators"]:
            one.set_state(decode_state(resumed["own_generators"][name]))
    for name, state in resumed["samplers"].items():
        getattr(loader, name).load_state_dict(state)
    made = _AdaptivePass(loader)
    made.begun_with = {name: resumed[name] for name in ("generators", "own_generators", "samplers")}
    try:
        made.skip(resumed["position"], frozenset(resumed["delivered"]))
    except StopIteration:
        raise UsageError(
            f"the state is after batch {resumed['position']}, but the sampler ends before: it belongs to other data "
            "or to another batch size"
        ) from None
    finally:
        restore_generators(here)
    return made


def _begin_of(loader: AdaptiveLoader) -> dict[str, Any]:
    """What a pass's order and draws follow from, as JSON values."""
    return {
        "generators": read_generators(),
        "own_generators": {name: encode_state(one.get_state()) for name, one in _own_generators(loader).items()},
        "samplers": {
            name: one.state_dict()
            for name in ("sampler", "batch_sampler")
            if hasattr(one := getattr(loader, name), "state_dict") and hasattr(one, "load_state_dict")
        },
    }


def _facts_of(loader: AdaptiveLoader) -> dict[str, Any]:
    """What a position in a pass has a meaning for only as long as it stays, as JSON values by name."""
    facts: dict[str, Any] = {
        "samples": len(loader.dataset) if hasattr(loader.dataset, "__len__") else None,
        "batch_size": getattr(loader.batch_sampler, "batch_size", None),
        "drop_last": loader.drop_last,
        "sampler": type(loader.sampler).__name__,
        "batch_sampler": type(loader.batch_sampler).__name__,
        "own generators": ", ".join(sorted(_own_generators(loader))) or "none",
    }
    for name in _ORDER_ATTRIBUTES:
        value = getattr(loader.sampler, name, None)
        if isinstance(value, (bool, int)):
            facts[name] = value
    return facts


def _own_generators(loader: AdaptiveLoader) -> dict[str, torch.Generator]:
    found = {"loader": loader.generator, "sampler": getattr(loader.sampler, "generator", None)}
    return {name: one for name, one in found.items() if isinstance(one, torch.Generator)}


def _states_of(loader: AdaptiveLoader) -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "random": random.getstate()}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        states["numpy"] = numpy.random.get_state()
    return states | {f"own {name}": one.get_state() for name, one in _own_generators(loader).items()}


def _put_states(loader: AdaptiveLoader, states: dict[str, Any]) -> None:
    """Set the generators that are named there."""
    if "torch" in states:
        torch.set_rng_state(states["torch"])
    if "random" in states:
        random.setstate(states["random"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])
    for name, one in _own_generators(loader).items():
        if f"own {name}" in states:
            one.set_state(states[f"own {name}"])


def _look_of(loader: AdaptiveLoader) -> tuple[Any, ...]:
    return (fingerprint(loader.batch_sampler), fingerprint(loader.sampler))
