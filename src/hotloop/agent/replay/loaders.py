"""DataLoaders and their batches -> waits, fetch times and samples of the current row, and totals of each loader.

A loader whose batches a backward follows feeds the training; others (validation, a look at one batch) do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hotloop.core.events import HAS_SEQUENCES, split_sizes
from hotloop.core.recording import FIELD, UNKNOWN

from .counting import PADDED, SAMPLES, Counting, add_tokens, forget_tokens
from .recorder import AFTER_INPUT, AFTER_NOGRAD, Recorder

BATCHES = FIELD["batches"]
MICRO_BATCHES = FIELD["micro_batches"]
MOST_STATES = 2_000


@dataclass(slots=True)
class FetchTotals:
    """Totals since the start, in ns, over ``batches`` batches."""

    batches: int = 0
    fetch_ns: int = 0
    fetch_cpu_ns: int = 0
    collate_ns: int = 0

    def add(self, batches: int, fetch_ns: int, fetch_cpu_ns: int, collate_ns: int) -> None:
        self.batches += batches
        self.fetch_ns += fetch_ns
        self.fetch_cpu_ns += fetch_cpu_ns
        self.collate_ns += collate_ns


@dataclass(slots=True, eq=False)
class LoaderState:
    """The state of one DataLoader object.

    ``batch_size`` are the samples of its first batch, where the loader makes the batches; ``id`` numbers loaders in
    order of their first iterator, UNKNOWN for a loader without known facts.
    """

    id: int
    facts: dict[str, Any] | None = None
    batch_size: int | None = None
    sample_dim: int | None = None
    holds_sequences: bool = False
    lists_samples: bool = False
    """Whether its batches list their samples one by one, so that no dimension counts them."""
    feeds_backward: bool | None = None
    draws: bool | None = None
    """Whether reading a batch moved a global random generator; None until the training process has read one."""
    last_samples: int = 0
    newest_iterator: int = 0
    interleaves: bool = False
    """Whether one of its iterators continued after a newer one had begun (``zip`` of two)."""
    batches: int = 0
    iterators: int = 0
    pending: int = 0
    pending_samples: int = 0
    iterator_ns: int = 0
    first_wait_ns: int = 0
    first_waits: int = 0
    wait_ns: int = 0
    is_fresh: bool = False
    main: FetchTotals = field(default_factory=FetchTotals)
    worker_pids: set[int] = field(default_factory=set)

    def stats(self, workers: FetchTotals) -> dict[str, Any]:
        """The batches it gave so far, as a fact of which only the newest counts."""
        total = workers if workers.batches else self.main
        known = total.batches > 0
        return {
            "kind": "loader_stats",
            "id": self.id,
            "batches": self.batches,
            "iterators": self.iterators,
            "feeds_backward": self.feeds_backward,
            "iterator_ns": self.iterator_ns,
            "first_wait_ns": self.first_wait_ns,
            "first_waits": self.first_waits,
            "wait_ns": self.wait_ns,
            "fetch_ns": total.fetch_ns if known else None,
            "fetch_cpu_ns": total.fetch_cpu_ns if known else None,
            "collate_ns": total.collate_ns if known else None,
            "fetch_batches": total.batches,
            "draws": self.draws,
        }


class Loaders:
    """The loaders of one process, by the addresses of their objects."""

    def __init__(self, recorder: Recorder, counting: Counting) -> None:
        self._recorder = recorder
        self._counting = counting
        self.states: dict[int, LoaderState] = {}
        self._told = 0
        self._iterators: dict[int, LoaderState] = {}
        self.last_state: LoaderState | None = None
        """The loader that gave the last batch, or whose iterator is being made."""
        self.unknown: list[LoaderState] = []
        """Loaders for which it is unknown whether they feed backward."""
        self._training_loaders = 0
        self._reading: LoaderState | None = None

    def describe(self, key: int, fact: dict[str, Any]) -> LoaderState:
        """A loader with its facts; another object was at its address before."""
        state = self.states[key] = LoaderState(self._told, fact, fact.get("first_batch_size"))
        self._told += 1
        self.unknown.append(state)
        return state

    def told(self) -> list[LoaderState]:
        return [state for state in self.states.values() if state.facts is not None]

    def totals(self, workers: Mapping[int, FetchTotals]) -> list[dict[str, Any]]:
        """The batches of every loader so far, with its workers' reports (by pid) on their fetching."""
        found = []
        for state in self.told():
            total = FetchTotals()
            for pid in state.worker_pids:
                if (own := workers.get(pid)) is not None:
                    total.add(own.batches, own.fetch_ns, own.fetch_cpu_ns, own.collate_ns)
            found.append(state.stats(total))
        return found

    def state_of(self, key: int) -> LoaderState:
        state = self.states.get(key)
        if state is None:
            if len(self.states) > MOST_STATES:
                self.states = {k: s for k, s in self.states.items() if s.facts is not None}
            state = self.states[key] = LoaderState(UNKNOWN)
            self.unknown.append(state)
        return state

    def iterator_begins(self, key: int) -> bool:
        """An iterator of the loader is about to be made; True when its batches surely do not feed backward."""
        state = self.state_of(key)
        if state is self.last_state:
            self._forget_peeked(state)
        self.last_state = state
        if self._is_other(state):
            self._recorder.other_loader()
        return self.is_surely_other(state)

    def _forget_peeked(self, state: LoaderState) -> None:
        """Take back a batch that was only looked at: the loader is iterated again and no training forward followed."""
        row, stack = self._recorder.row, self._recorder.stack
        if state.feeds_backward is False or state.interleaves or not state.last_samples:
            return
        if len(stack) == 1 and stack[0] in (AFTER_INPUT, AFTER_NOGRAD) and row[BATCHES]:
            row[SAMPLES] -= min(row[SAMPLES], state.last_samples)
            forget_tokens(row)
            if state.feeds_backward:
                row[MICRO_BATCHES] -= min(row[MICRO_BATCHES], 1)
            else:
                state.pending -= min(state.pending, 1)
                state.pending_samples -= min(state.pending_samples, state.last_samples)

    def exhausted(self, state: LoaderState | None) -> None:
        """A loader has no more batches. If forwards without gradients used them, they fed no backward."""
        burst = self._recorder.burst
        if state is not None:
            state.last_samples = 0
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

    @property
    def reads_other(self) -> bool:
        """Whether the newest batch is of a loader that is not known to feed backward."""
        return self.last_state is not None and not self.last_state.feeds_backward

    def is_surely_other(self, state: LoaderState | None) -> bool:
        """True for a loader that does not feed backward. Of a loader that has not done so yet: once forwards without
        gradients have followed its batches, because a loader that is made anew for each epoch feeds backward too."""
        if state is None or not self._is_other(state):
            return False
        burst = self._recorder.burst
        return state.feeds_backward is False or bool(state.pending and burst is not None and burst.forwards)

    def iterator_created(self, key: int, iterator: int, spent_ns: int) -> None:
        """It was made; its workers have been started."""
        state = self.state_of(key)
        if len(self._iterators) > MOST_STATES:
            self._iterators.clear()
        self._iterators[iterator] = self.last_state = state
        state.newest_iterator = iterator
        state.iterators += 1
        state.iterator_ns += spent_ns
        state.is_fresh = True

    def before_batch(self, iterator: int) -> LoaderState | None:
        """The state of the iterator's loader; says to the recorder when that loader does not feed backward."""
        known = self._iterators.get(iterator)
        if known is not None and known.newest_iterator != iterator:
            known.interleaves = True
        state = self._reading = known or self.last_state
        if state is not None and self._is_other(state):
            self._recorder.other_loader()
        return state

    def after_batch(
        self, state: LoaderState | None, waited_ns: int, flags: int, declared: int, lead: int, sequences: int
    ) -> None:
        """A batch was taken by the training's loop."""
        recorder, counting = self._recorder, self._counting
        row = recorder.row
        row[BATCHES] = fetched = row[BATCHES] + 1
        first, second = split_sizes(lead)
        samples = declared if declared > 0 else first
        copied = counting.take_copy(0 if state is None else state.sample_dim or 0)
        if state is not None:
            state.batches += 1
            state.wait_ns += waited_ns
            if state.is_fresh:
                state.is_fresh = False
                state.first_waits += 1
                state.first_wait_ns += waited_ns
            self.last_state = state
            samples = counting.settle_samples(state, declared, first, second)
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
        if not samples:
            return
        if copied is not None:
            add_tokens(row, copied)
            if state is not None:
                state.holds_sequences = True
        if copied is not None or (state is not None and state.holds_sequences and flags & HAS_SEQUENCES):
            long, wide = split_sizes(sequences)
            row[PADDED] = max(0, row[PADDED]) + (copied[0] + copied[1] if copied is not None else long * wide)

    def fetched(self, fetch_ns: int, cpu_ns: int, collate_ns: int, draws: int, stands_for: int) -> None:
        """A batch was read in the training process."""
        row = self._recorder.row
        row[FIELD["fetch_ns"]] += fetch_ns
        row[FIELD["fetch_cpu_ns"]] += cpu_ns
        row[FIELD["collate_ns"]] += collate_ns
        row[FIELD["fetch_batches"]] += 1
        state = self._reading
        if state is not None:
            # In the totals a batch represents those left out before it: the first ones must not count for more.
            n = max(1, stands_for)
            state.main.add(n, n * fetch_ns, n * cpu_ns, n * collate_ns)
            if draws >= 0:
                state.draws = bool(state.draws) or draws > 0

    def found_feeding(self, state: LoaderState) -> None:
        """The loader that gave the last batch feeds backward."""
        state.feeds_backward = True
        self._training_loaders += 1
        self._recorder.row[MICRO_BATCHES] += state.pending
        state.pending = state.pending_samples = 0

    def sort_out(self, feeding: LoaderState | None) -> None:
        """Loaders that gave batches before this backward, and not the last one, feed something else."""
        for other in self.unknown:
            if other is not feeding and other.batches and other.feeds_backward is None:
                other.feeds_backward = False
        self.unknown = [s for s in self.unknown if s.feeds_backward is None]
