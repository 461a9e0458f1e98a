"""A DataLoader whose passes fetch in worker processes while the main process draws exactly what it drew without them.

torch's own worker iterator differs from loading in the main process in four visible ways: it reads the sampler ahead of
the loop, so that draws from a generator of the script's come early; persistent workers take no seed at later passes, so
that every later draw of the training shifts; a second iterator over the same loader restarts the first; and what the
script changes in its dataset never reaches a worker. A Pass is an iterator of torch's that has none of these.
"""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data import _utils as utils
from torch.utils.data import dataloader as torch_loader

from hotloop.change.apply.loader_samples import Reads, fingerprint, read_samples
from hotloop.change.apply.shareable import find_unshareable

MOST_CHANGES = 2
"""After this many changes of the dataset in the middle of a pass, workers would only be in the way."""


_BaseDataLoaderIter: Any = torch_loader._BaseDataLoaderIter
_MultiProcessingDataLoaderIter: Any = torch_loader._MultiProcessingDataLoaderIter
_kinds: Any = torch_loader._DatasetKind
_pin: Any = utils.pin_memory.pin_memory


def start_method(loader: Any) -> str:
    """How its workers are started; fork where the script has not chosen."""
    chosen = (loader.multiprocessing_context or multiprocessing).get_start_method(allow_none=True)
    return str(chosen or "fork")


class _IteratorMaker:
    """Replaces a loader's ``_get_iterator``. A pickle or a deep copy of the loader drops it and has torch's own."""

    def __init__(self, loader: Any) -> None:
        self._loader = weakref.ref(loader)

    def find_loader(self) -> Any:
        loader = self._loader()
        if loader is None:
            raise RuntimeError(
                "the DataLoader of this iterator no longer exists; iterate over the original, not over a copy"
            )
        return loader

    def __reduce__(self) -> Any:
        return (getattr, (self._loader(), "_get_iterator"))


class WorkerPasses(_IteratorMaker):
    """Makes the iterators of one loader.

    ``was_local`` says that the
    script loads in the main process: then passes without gradients (validation) still do, and so does whatever the
    workers cannot do in exactly the same way. ``emit(why)`` is called when that is so for all later passes.
    """

    def __init__(
        self,
        loader: Any,
        *,
        num_workers: int,
        persistent: bool,
        training_only: bool,
        is_resampled: bool,
        niceness: int = 0,
        emit: Callable[[str], None] = lambda why: None,
    ) -> None:
        super().__init__(loader)
        self.persistent = persistent
        self.num_workers = num_workers
        self.was_local = loader.num_workers == 0
        self.training_only = training_only
        self.pool: _Pool | None = None
        self.owner: weakref.ref[Pass] | None = None
        self.changes_count = 0
        self._is_resampled = is_resampled
        self._niceness = niceness
        self._emit = emit
        self._built_print: Any = fingerprint(loader.dataset)

    def __call__(self) -> Any:
        return Pass(self.find_loader(), self)

    def acquire(self, taker: Pass, loader: Any) -> _Pool | None:
        """A pool for one pass; None when the pass has to fetch in the main process."""
        if self.was_local and self.training_only and not torch.is_grad_enabled():
            return None
        if self.was_local and self.changes_count >= MOST_CHANGES:
            return None
        if self.was_local and not self._is_as_built(loader):
            return None
        if not self.persistent:
            return self._start(taker, loader)
        holder = None if self.owner is None else self.owner()
        if holder is not None and holder is not taker and not holder.finished:
            return None if self.was_local else self._start(taker, loader)
        if self.pool is not None and (self.pool.is_gone or self.pool.dataset_print != fingerprint(loader.dataset)):
            self.drop()
        if self.pool is None:
            self.pool = self._start(taker, loader)
        self.owner = weakref.ref(taker)
        return self.pool

    def _is_as_built(self, loader: Any) -> bool:
        """Before the first pass: whether what was seen of the dataset when the loader was built still holds.

        A transform that the script has put into it since then may draw random numbers, or not work in a worker.
        """
        built, self._built_print = self._built_print, None
        if built is None or built == fingerprint(loader.dataset):
            return True
        if not self._may_fork(loader):
            return False
        reads = read_samples(loader)
        fits = isinstance(reads, Reads) and not (reads.error or reads.unstable or reads.changed)
        draws = not isinstance(reads, Reads) or bool(reads.draws or reads.threaded)
        if fits and (self._is_resampled or not draws):
            return True
        self.changes_count = MOST_CHANGES
        return False

    def drop(self) -> None:
        pool, self.pool = self.pool, None
        if pool is not None:
            pool._shutdown_workers()

    def _may_fork(self, loader: Any) -> bool:
        """Whether workers may still be forked: the script may have opened files or connections since the last look."""
        context = loader.multiprocessing_context
        if not self.was_local or context is None or context.get_start_method() != "fork":
            return True
        problem = find_unshareable(("dataset", loader.dataset), ("collate_fn", loader.collate_fn))
        if problem is None:
            return True
        self.changes_count = MOST_CHANGES
        self._emit(f"workers are no longer used: {problem}")
        return False

    def _start(self, taker: Pass, loader: Any) -> _Pool | None:
        if not self._may_fork(loader):
            return None
        try:
            pool = _Pool(_View(loader, self, taker.seed_state))
        except (OSError, RuntimeError, AssertionError):  # no more processes or memory, or a daemon, which may have none
            if not self.was_local:
                raise
            self.changes_count = MOST_CHANGES
            return None
        lower_priority(pool, self._niceness)
        return pool


class Pass(_BaseDataLoaderIter):  # type: ignore[misc]
    """One pass over a loader. The base class draws the base seed and opens the sampler, as it does without workers."""

    def __init__(self, loader: Any, passes: WorkerPasses) -> None:
        generator = torch.default_generator if loader.generator is None else loader.generator
        self.seed_state = generator.get_state()  # the workers get the seed that torch's own would get
        super().__init__(loader)
        self.finished = False
        self._loader = loader
        self._passes = passes
        self._begun = False
        self._pool: _Pool | None = None
        self._fetcher: Any = None
        if not passes.was_local:  # torch's workers open the sampler twice and begin at once
            self._sampler_iter = iter(self._index_sampler)
            self._begin()

    @property
    def _workers(self) -> Any:
        """For hotloop's own recording."""
        return () if self._pool is None else self._pool._workers

    def _begin(self) -> None:
        self._begun = True
        self._ahead = _ReadAhead(self._sampler_iter, self._loader)
        self._pool = self._passes.acquire(self, self._loader)
        if self._pool is None:
            self._go_local()
        else:
            self._profile_name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            self._pool.begin(self._ahead)

    def _next_data(self) -> Any:
        if not self._begun:
            self._begin()
        if self.finished:
            raise StopIteration
        pool = self._pool
        if pool is None:
            return self._fetch()
        if self._passes.was_local and pool.dataset_print != fingerprint(self._loader.dataset):
            self._passes.changes_count += 1
            self._go_local()
            return self._fetch()
        try:
            data = pool._next_data()
        except StopIteration:
            self.finished = True
            self._ahead.come_to_end()
            raise
        except RuntimeError:
            if not self._passes.was_local or not pool.has_lost_a_worker:
                self._ahead.come_to_next()
                raise
            self._passes.changes_count = MOST_CHANGES
            self._go_local()
            return self._fetch()
        except Exception:  # what the dataset raised: its batch is gone, as without workers
            self._ahead.come_to_next()
            raise
        self._ahead.come_to_next()
        return data

    def _fetch(self) -> Any:
        try:
            index = self._next_index()
        except StopIteration:
            self.finished = True
            raise
        data = self._fetcher.fetch(index)
        return _pin(data, self._pin_memory_device) if self._pin_memory else data

    def _go_local(self) -> None:
        """From here on fetch in the main process, beginning with the batches that the workers still owe."""
        if self._pool is not None:
            if self._passes.pool is self._pool:
                self._passes.drop()
            else:
                self._pool._shutdown_workers()
            self._pool = None
        self._profile_name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        self._sampler_iter = self._ahead.rest()
        self._fetcher = _kinds.create_fetcher(
            self._dataset_kind, self._dataset, self._auto_collation, self._collate_fn, self._drop_last
        )


class _ReadAhead:
    """The sampler's indices for the workers; a generator of the script's is left as the loop would find it.

    RandomSampler draws from it at its first index, when the loop is there, and once more where it ends (those numbers
    are thrown away): seen too early, that draw is taken back and made again when the loop comes to it. It does not hold
    the Pass: hotloop must notice when the loop has left a Pass.
    """

    def __init__(self, indices: Iterator[Any], loader: Any) -> None:
        self._indices = indices
        self._tail = _tail_generator(loader)
        self._is_first = True
        self._owes_at_end = False
        self._sent: deque[tuple[Any, bool]] = deque()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._tail is None or self._is_first:
            self._is_first = False
            index = next(self._indices)
            self._sent.append((index, False))
            return index
        before = self._tail[0].get_state()
        try:
            index = next(self._indices)
        except StopIteration:
            self._owes_at_end = self._owes_at_end or self._take_back(before)
            raise
        self._sent.append((index, self._take_back(before)))
        return index

    def _take_back(self, before: torch.Tensor) -> bool:
        assert self._tail is not None
        if torch.equal(self._tail[0].get_state(), before):
            return False
        self._tail[0].set_state(before)
        return True

    def come_to_next(self) -> None:
        """The loop has its next batch, or its error."""
        if self._sent and self._sent.popleft()[1]:
            self._draw()

    def come_to_end(self) -> None:
        if self._owes_at_end:
            self._owes_at_end = False
            self._draw()

    def rest(self) -> Iterator[Any]:
        """Indices that the loop has not had yet, drawn as the loop reaches them."""
        while self._sent:
            index, owes = self._sent.popleft()
            if owes:
                self._draw()
            yield index
        yield from self._indices
        self.come_to_end()

    def _draw(self) -> None:
        assert self._tail is not None
        torch.randperm(self._tail[1], generator=self._tail[0])


class _View:
    """The loader as a pool sees it: with workers, a sampler that is fed pass by pass, and a generator of its own."""

    def __init__(self, loader: Any, passes: WorkerPasses, seed_state: torch.Tensor) -> None:
        self.generator = torch.Generator()
        self.generator.set_state(seed_state)
        self.num_workers = passes.num_workers
        self.persistent_workers = passes.persistent
        self._index_sampler = _Fed()
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Fed:
    """An index sampler whose source is exchanged for every pass."""

    def __init__(self) -> None:
        self.source: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.source)


class _Pool(_MultiProcessingDataLoaderIter):  # type: ignore[misc]
    """Worker processes that serve one pass after the other."""

    def __init__(self, view: _View) -> None:
        self.dataset_print = fingerprint(view.dataset)
        super().__init__(view)
        view._loader = None  # the pool must not keep the loader alive
        self._fed = view._index_sampler
        self._served = False

    def begin(self, source: Iterator[Any]) -> None:
        is_idle = not self._task_info
        self._fed.source = iter(())
        if self._served and not is_idle:
            self._reset(_Counted())  # the last pass was left early: wait for what is under way, and forget it
        self._served = True
        self._fed.source = source
        self._reset(_Counted(), first_iter=True)

    @property
    def is_gone(self) -> bool:
        return self._shutdown or self.has_lost_a_worker

    @property
    def has_lost_a_worker(self) -> bool:
        return any(not worker.is_alive() for worker in self._workers)


class _Counted:
    """The attributes that torch's ``_reset`` reads of a loader of map-style data."""

    _IterableDataset_len_called = None
    generator = None


def _tail_generator(loader: Any) -> tuple[torch.Generator, int] | None:
    """The script's generator and the number of indices of a RandomSampler, which draws once more at its end."""
    sampler = loader.sampler
    if type(sampler) is not RandomSampler or sampler.generator is None or sampler.replacement:
        return None
    count = len(sampler.data_source)
    return (sampler.generator, count) if sampler.num_samples == count else None


def lower_priority(iterator: Any, niceness: int) -> None:
    """Lower the priority of a loader's workers below this process's where cores are short; 0 leaves it as it is.

    From here and not by a ``worker_init_fn``, so that nothing has to be sent to workers that are spawned.
    """
    if not niceness:
        return
    level = min(19, os.getpriority(os.PRIO_PROCESS, 0) + niceness)
    for worker in getattr(iterator, "_workers", ()):
        try:
            os.setpriority(os.PRIO_PROCESS, worker.pid, level)
        except (OSError, TypeError):  # it has ended already, or was never started: torch tells of that
            continue


class LowPriority(_IteratorMaker):
    """Torch's own workers, at a lower priority."""

    def __init__(self, loader: Any, niceness: int) -> None:
        super().__init__(loader)
        self._niceness = niceness

    def __call__(self) -> Any:
        loader = self.find_loader()
        iterator = type(loader)._get_iterator(loader)
        lower_priority(iterator, self._niceness)
        return iterator


def give_workers(
    loader: Any,
    *,
    num_workers: int,
    prefetch_factor: int,
    persistent: bool,
    context: str | None,
    training_only: bool,
    is_resampled: bool,
    niceness: int = 0,
    emit: Callable[[str], None] = lambda why: None,
) -> None:
    """Let the loader's later passes fetch in workers. Existing iterators continue as they are."""
    passes = WorkerPasses(
        loader,
        num_workers=num_workers,
        persistent=persistent,
        training_only=training_only,
        is_resampled=is_resampled,
        niceness=niceness,
        emit=emit,
    )
    loader.num_workers = num_workers
    loader.prefetch_factor = prefetch_factor
    if context is not None:
        loader.multiprocessing_context = context
    object.__setattr__(loader, "_get_iterator", passes)


def is_plain(loader: Any) -> bool:
    """Whether the loader makes its iterators as torch does (a class of the script's may not)."""
    return (
        isinstance(loader, DataLoader)
        and type(loader)._get_iterator is DataLoader._get_iterator
        and "_get_iterator" not in vars(loader)
    )
