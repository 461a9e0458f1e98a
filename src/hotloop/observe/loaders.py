"""DataLoaders and their batches -> waits, fetch times and samples of the current row, and totals of each loader.

A loader whose batches a backward follows feeds the training; others (validation, a look at one batch) do not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from hotloop.core.recording import FIELD, UNKNOWN

from . import batches, facts
from .counting import PADDED, SAMPLES, Counting, forget_tokens
from .draws import has_drawn, random_states
from .guard import GUARD, guarded
from .loader_state import LoaderState
from .places import Place
from .recorder import AFTER_INPUT, AFTER_NOGRAD, Recorder
from .thread_time import counts_run_queue
from .workers import FetchTotals, WorkerTable

BATCHES = FIELD["batches"]
MICRO_BATCHES = FIELD["micro_batches"]
FETCH_NS = FIELD["fetch_ns"]
FETCH_CPU_NS = FIELD["fetch_cpu_ns"]
COLLATE_NS = FIELD["collate_ns"]
FETCH_BATCHES = FIELD["fetch_batches"]

TIMED_FETCHES = 64
"""So many batches are timed one by one where they are fetched in the training process, then one in four."""
RARELY_TIMED_FETCHES = 128
"""After so many timed ones, as many as keep the timing below about 0.05 % of the time."""
WATCHED_FETCHES = 4
"""So many batches are watched for random draws: two snapshots and comparing them take 0.17 ms (EPYC, busy)."""
FETCH_GAP_NS = 66_000_000
MOST_GAPS = 40
"""A gap is made so many times longer as batches fit into FETCH_GAP_NS, at most MOST_GAPS times: asking the kernel costs
100 us a batch among cold caches."""
FETCH_GAPS = (2, 4, 1, 5)
"""Batches that are left out between two timed ones: not evenly, because what a batch costs may have a period."""


class Loaders:
    """The loaders of a session. No method that a wrapper calls raises."""

    # What wrappers touch in every step lies side by side; everything else is in the dictionary.
    __slots__ = (
        "__dict__",
        "_counting",
        "_fetch_state",
        "_recorder",
        "fetches_to_skip",
        "iterator_ref",
        "last_state",
        "state",
        "unknown",
    )

    def __init__(
        self,
        recorder: Recorder,
        counting: Counting,
        *,
        record: Callable[[dict[str, Any]], None],
        place_of: Callable[[Any], Place | None],
        is_owner: Callable[[], bool],
        widen: Callable[[], bool],
    ) -> None:
        """``record`` writes a fact. ``is_owner``: whether the calling thread is the one that trains. ``widen``: have
        nested modules watched again; True when they were not.
        """
        self._recorder = recorder
        self._counting = counting
        self._record = record
        self._place_of = place_of
        self._is_owner = is_owner
        self._widen = widen
        self._table: WorkerTable | None = None
        self.reset()

    def reset(self) -> None:
        """Forget every loader, as in a freshly forked child; a worker keeps the table of its parent."""
        self.states: dict[int, LoaderState] = {}
        self._loader_refs: dict[int, weakref.ref[Any]] = {}
        self._iterators: weakref.WeakKeyDictionary[Any, LoaderState] = weakref.WeakKeyDictionary()
        self.iterator_ref: Callable[[], Any] = _nobody
        """The iterator whose batches were taken last, if its loader is known to feed backward."""
        self.state: LoaderState | None = None
        self.last_state: LoaderState | None = None
        """Of the loader that gave the last batch, or whose iterator is being made."""
        self.unknown: list[LoaderState] = []
        """Loaders of which it is not known whether they feed backward."""
        self._training_loaders = 0
        self._fetch_state: LoaderState | None = None
        self.fetches_to_skip = 0
        self._fetches = self._fetch_gap = self._timed_at_ns = 0
        self._taken_from: Callable[[], Any] = _nobody
        """The iterator that the last batch came from, until it is exhausted."""

    def totals(self) -> list[dict[str, Any]]:
        """What every loader gave so far, as facts of which only the newest counts."""
        found: list[dict[str, Any]] = []
        by_pid = self._table.read() if self._table is not None else {}
        for state in list(self.states.values()):
            workers = FetchTotals()
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
                    "counts_run_queue": counts_run_queue(),
                    "draws": state.draws,
                }
            )
        return found

    def _state_of(self, loader: Any) -> LoaderState:
        key = id(loader)
        reference = self._loader_refs.get(key)
        if reference is None or reference() is not loader:
            loader_id = len(self._loader_refs)
            described = facts.loader_facts(loader, loader_id, self._place_of(loader))
            self._loader_refs[key] = weakref.ref(loader)
            self.states[key] = LoaderState(loader_id, described, facts.first_batch_size(loader))
            self.unknown.append(self.states[key])
            self._recorder.quick = False  # the next backward says whether it is fed by this one
            self._record(described)
        return self.states[key]

    @guarded
    def iterator_begins(self, loader: Any) -> bool | None:
        """An iterator of the loader is about to be made; True when its batches surely do not feed backward."""
        self._forget_peeked()
        self.last_state = state = self._state_of(loader)
        if loader.num_workers and self._table is None:
            self._table = WorkerTable.create()
        if self._is_other(state):
            self._recorder.other_loader()
        return self.is_surely_other(state)

    def _forget_peeked(self) -> None:
        """Take back a batch that was only looked at: its iterator was dropped and no training forward followed."""
        taken_from, self._taken_from = self._taken_from, _nobody
        state, row, stack = self.last_state, self._recorder.row, self._recorder.stack
        if taken_from is _nobody or taken_from() is not None or state is None or state.feeds_backward is False:
            return
        if len(stack) == 1 and stack[0] in (AFTER_INPUT, AFTER_NOGRAD) and row[BATCHES]:
            row[SAMPLES] -= min(row[SAMPLES], state.last_samples)
            forget_tokens(row)
            if state.feeds_backward:
                row[MICRO_BATCHES] -= min(row[MICRO_BATCHES], 1)
            else:
                state.pending -= min(state.pending, 1)
                state.pending_samples -= min(state.pending_samples, state.last_samples)

    def iterator_exhausted(self, state: LoaderState | None) -> None:
        """A loader has no more batches. If forwards without gradients used them, they fed no backward."""
        self._taken_from = _nobody
        burst = self._recorder.burst
        if state is None or state.feeds_backward or burst is None or not burst.forwards:
            return
        state.feeds_backward = False
        row = self._recorder.row
        row[SAMPLES] -= min(row[SAMPLES], state.pending_samples)
        forget_tokens(row)
        state.pending = state.pending_samples = 0
        burst.other_loader = True
        if self.last_state is state:
            self.last_state = None

    def _is_other(self, state: LoaderState) -> bool:
        """True for a loader that does not feed backward, or has not yet while another one does."""
        return state.feeds_backward is False or (state.feeds_backward is None and self._training_loaders > 0)

    @guarded
    def is_surely_other(self, state: LoaderState | None) -> bool | None:
        """True for a loader that does not feed backward; of one that has not yet, once forwards without gradients have
        followed its batches: one that is made anew for each epoch feeds backward too."""
        if state is None or not self._is_other(state):
            return False
        burst = self._recorder.burst
        return state.feeds_backward is False or bool(state.pending and burst is not None and burst.forwards)

    @guarded
    def iterator_created(self, loader: Any, iterator: Any, spent_ns: int) -> None:
        """It was made; its workers have been started."""
        state = self._state_of(loader)
        try:
            self._iterators[iterator] = state
        except TypeError:  # some loaders answer a generator: its batches are counted under the loader last iterated
            self.last_state = state
        if is_watched(state.iterators) and self._widen():  # another loop may begin here, around another model
            self._recorder.due = 0
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
        state = self._iterators.get(iterator, self.last_state)
        self._fetch_state = self.state = state
        if state is not None and state.feeds_backward:
            self.iterator_ref = weakref.ref(iterator)  # from here on wrappers need not ask
        elif state is not None and self._is_other(state):
            self._recorder.other_loader()
        return state

    def after_batch(self, state: LoaderState | None, batch: Any, waited_ns: int) -> None:
        """A batch was taken by the training's loop."""
        try:
            recorder, counting = self._recorder, self._counting
            row = recorder.row
            row[BATCHES] = fetched = row[BATCHES] + 1
            samples = batches.count_samples(batch)
            if state is not None:
                state.batches += 1
                state.wait_ns += waited_ns
                if state.fresh:
                    state.fresh = False
                    state.first_waits += 1
                    state.first_wait_ns += waited_ns
                self.last_state = state
                if samples != state.whole_batch:
                    samples = counting.settle_samples(state, batch, samples)
                if state.feeds_backward:
                    if recorder.burst is not None:
                        recorder.drop_empty_burst()
                    row[MICRO_BATCHES] += 1
                    if fetched == 1 and (row[SAMPLES] or counting.direct_samples):
                        counting.drop_direct()
                elif state.feeds_backward is None:
                    state.pending += 1
                    state.pending_samples += samples
                else:
                    return
                state.last_samples = samples
            row[SAMPLES] += samples
            padded = counting.count_batch(state, batch) if samples else UNKNOWN
            if padded != UNKNOWN:
                row[PADDED] = max(0, row[PADDED]) + padded
            if state is not None:
                state.last_padded = padded
                state.last_shape = (batches.first_shape(batch) if samples == state.whole_batch else None) or ()
        except Exception as error:
            GUARD.record("Loaders.after_batch", error)

    @guarded
    def batch_fetched(self, fetch_ns: int, fetch_cpu_ns: int, collate_ns: int) -> None:
        """A batch was read, here or in a worker."""
        info = torch.utils.data.get_worker_info()
        if info is not None:
            if self._table is None:
                self._table = self._find_table()
            if self._table is not None:
                self._table.add(fetch_ns, fetch_cpu_ns, collate_ns)
            return
        if not self._is_owner():
            return
        self._fetches += 1
        stands_for, self._fetch_gap = 1 + self._fetch_gap, 0
        if self._fetches >= TIMED_FETCHES:
            self._fetch_gap = FETCH_GAPS[self._fetches % len(FETCH_GAPS)]
            if self._fetches >= RARELY_TIMED_FETCHES:
                between_ns = (self._recorder.last_ns - self._timed_at_ns) // stands_for
                self._fetch_gap *= max(1, min(MOST_GAPS, FETCH_GAP_NS // max(1, between_ns)))
            self.fetches_to_skip = self._fetch_gap
        self._timed_at_ns = self._recorder.last_ns
        row = self._recorder.row
        row[FETCH_NS] += fetch_ns
        row[FETCH_CPU_NS] += fetch_cpu_ns
        row[COLLATE_NS] += collate_ns
        row[FETCH_BATCHES] += 1
        if self._fetch_state is not None:
            # In the totals a batch stands for those left out before it: the first ones must not count for more.
            n = stands_for
            self._fetch_state.main.add(n, n * fetch_ns, n * fetch_cpu_ns, n * collate_ns)

    @guarded
    def before_draws(self) -> tuple[Any, ...] | None:
        """The states of the random generators before one of the first batches is read here; None for later ones."""
        is_watched_here = self._fetches < WATCHED_FETCHES and self._is_owner()
        return random_states() if is_watched_here and torch.utils.data.get_worker_info() is None else None

    @guarded
    def after_draws(self, before: tuple[Any, ...]) -> None:
        """The batch was read: did that draw?"""
        if self._fetch_state is not None:
            self._fetch_state.draws = self._fetch_state.draws or has_drawn(before, random_states())

    def _find_table(self) -> WorkerTable | None:
        import multiprocessing

        parent = multiprocessing.parent_process()
        return None if parent is None or parent.pid is None else WorkerTable.of_parent(parent.pid)

    def found_feeding(self, state: LoaderState) -> None:
        """The loader that gave the last batch feeds backward."""
        state.feeds_backward = True
        self._training_loaders += 1
        self._recorder.row[MICRO_BATCHES] += state.pending
        state.pending = state.pending_samples = 0
        self.iterator_ref = _nobody

    def sort_out(self, feeding: LoaderState | None) -> None:
        """Loaders that gave batches before this backward, and not the last one, feed something else."""
        for other in self.unknown:
            if other is not feeding and other.batches and other.feeds_backward is None:
                other.feeds_backward = False
        self.unknown = [s for s in self.unknown if s.feeds_backward is None]


def is_watched(iterators: int) -> bool:
    """Whether nested modules are watched again at a loader's next iterator, after so many: at ever fewer of them,
    because every switch empties the interpreter's caches of types.

    >>> [n for n in range(70) if is_watched(n)]
    [0, 1, 2, 3, 4, 8, 16, 32, 64]
    """
    return iterators < 4 or iterators & (iterators - 1) == 0


def _nobody() -> None:
    """In the place of a weak reference while there is nothing to refer to."""
