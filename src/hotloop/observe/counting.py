"""Batches and model inputs -> samples and tokens of the current row.

What a DataLoader gives is counted batch by batch; where there is none, the largest input of a model before each
backward is. Which dimension counts samples is found out, not assumed.
"""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from hotloop.core.recording import FIELD, UNKNOWN

from . import batches
from .loader_state import LoaderState
from .recorder import OPTIMIZER, Recorder, Row

SAMPLES = FIELD["samples"]
PADDED = FIELD["padded_tokens"]
TOKENS = FIELD["tokens"]
PADDING = FIELD["padding_tokens"]
LONGEST = FIELD["longest_tokens"]

COUNTING_NS, COUNTING_PARTS = 20_000_000, 2_000
"""Reading masks and padding may take so long, and one part in so many of the time since: 0.05 %. While it took less,
tokens are counted in every row, then in every second one and so on."""
FIRST_ROWS, RARE_ROWS = 4, 128
"""The first rows are looked at in any case, and later one in so many, however much it costs or little it finds."""


class Counting:
    """``counted_row`` is the row whose tokens are counted, the next one or this; ``direct_samples`` waits for a
    backward.

    Samples, and tokens with padding, are told by shapes in every row. Which of the tokens are padding has to be read:
    of every so many rows one that is drawn, so that nothing that recurs is always hit, or never. The draw is our own;
    the training's random numbers stay as they are.
    """

    __slots__ = (
        "_began_ns",
        "_direct_input",
        "_direct_key",
        "_direct_padded",
        "_direct_tokens",
        "_gap",
        "_in_closure",
        "_inner_batches",
        "_largest",
        "_may_hold_graphs",
        "_random",
        "_recorder",
        "_spent_ns",
        "counted_row",
        "direct_samples",
        "input_stays",
        "time_first",
        "undecided",
    )

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.reset()

    def reset(self) -> None:
        """Forget everything, as in a freshly forked child."""
        self.counted_row = 0
        self._gap, self._spent_ns, self._began_ns = 1, 0, 0
        self._random = random.Random(0)
        self.direct_samples = 0
        self._direct_tokens: tuple[int, int, int] | None = None
        self._direct_padded = UNKNOWN
        self._direct_key: str | None = None
        self._direct_input: tuple[Callable[[], Any], int] = (_nobody, 0)
        self._largest: Callable[[], Any] = _nobody
        self._in_closure: tuple[int, Callable[[], Any]] = (UNKNOWN, _nobody)
        """The row of the last backward inside an optimizer's step, and the input that it learned from."""
        self._may_hold_graphs: dict[int, bool] = {}
        """By a model's identity, once its inputs were looked at."""
        self.input_stays = False
        self.time_first: dict[int, int | None] = {}
        """Of every outermost module that holds one with ``batch_first=False``: the dimension of its input that counts
        samples, None while that is not decided, UNKNOWN where it cannot be told."""
        self.undecided: tuple[int, tuple[int, int]] | None = None
        """Such a module and the shape of its input, until a backward follows."""
        self._inner_batches: set[int] = set()
        """Batch sizes seen at modules with ``batch_first=False``, whose inputs say which dimension is which."""

    def settle_samples(self, state: LoaderState, batch: Any, leading: int) -> int:
        """Samples of a batch whose leading dimension is not known to count them; 0 when that cannot be told.

        A loader that makes the batches says how many samples they hold, all but the last one. Where it does not say it,
        the modules inside a model that takes time first do.
        """
        if state.batch_size is None and not self.time_first:
            return leading
        declared = batches.count_declared(batch)
        if declared:
            return declared
        known: Any = self._inner_batches if state.batch_size is None else (state.batch_size,)
        shape = batches.leading_shape(batch)
        if state.sample_dim is None:
            state.sample_dim = batches.find_sample_dim(shape, known)
            if state.sample_dim is None:
                return self._settle_listed(state, batch)
            if state.sample_dim == 0 and state.batch_size is not None:
                state.whole_batch = state.batch_size
        count = shape[state.sample_dim]
        if state.batch_size is None or count <= state.batch_size:
            return count
        if shape[1] == state.batch_size:  # the first batches were as long as they were many
            state.sample_dim, state.whole_batch = 1, 0
            return state.batch_size
        return 0

    @staticmethod
    def _settle_listed(state: LoaderState, batch: Any) -> int:
        """Samples of a batch that lists them, once a list was as long as the loader's batches are known to be."""
        listed = batches.count_listed(batch)
        if state.batch_size is None or listed > state.batch_size:
            return 0
        state.lists_samples = state.lists_samples or listed == state.batch_size > 1
        return listed if state.lists_samples else 0

    def count_batch(self, state: LoaderState | None, batch: Any) -> int:
        """Tokens with padding of a batch that was taken from a loader, or UNKNOWN; in a counted row those without too.

        A loader that is not known has no place to keep what was found out: its batches tell in counted rows only.
        """
        key = None if state is None else state.sequence_key
        if self.counted_row <= self._recorder.rows and self._counts_row():
            counted = self._count_tokens(batch, 0 if state is None else state.sample_dim, key)
            if counted is not None:
                _add_tokens(self._recorder.row, counted)
                if state is not None and key is None:
                    state.sequence_key = batches.sequence_key(batch)
                return counted[0] + counted[1]
        return UNKNOWN if key is None else batches.padded_size(batch, key)

    def _counts_row(self) -> bool:
        """Whether the tokens of this row are counted; where the row to count is past, the next one is drawn."""
        rows, now_ns = self._recorder.rows, self._recorder.last_ns
        if rows > self.counted_row:
            self._began_ns = self._began_ns or now_ns
            is_cheap = self._spent_ns <= COUNTING_NS + (now_ns - self._began_ns) // COUNTING_PARTS
            self._gap = gap = max(1, self._gap // 2) if is_cheap else min(RARE_ROWS, 2 * self._gap)
            start = max(self.counted_row // gap + 1, rows // gap) * gap
            self.counted_row = max(rows, start + (self._random.randrange(gap) if gap > 1 else 0))
        return rows == self.counted_row

    def _count_tokens(self, batch: Any, sample_dim: int | None, key: str | None) -> tuple[int, int, int] | None:
        start_ns = time.perf_counter_ns()
        counted = batches.count_tokens(batch, sample_dim or 0, holds_sequences=key is not None)
        self._spent_ns += time.perf_counter_ns() - start_ns
        if counted is None and self.counted_row >= FIRST_ROWS:  # nothing to count: look less and less often
            self._gap = min(2 * RARE_ROWS, 4 * self._gap)  # of which the next draw takes one half
        return counted

    def count_direct(self, key: int, args: Any, kwargs: Any) -> None:
        """Samples and tokens of a training without a DataLoader: the largest model input before each backward."""
        batch = args if args else kwargs
        sample_dim: int | None = 0
        if key in self.time_first:
            sample_dim = self.time_first[key]
            if sample_dim is None:
                self.undecided = (key, batches.leading_shape(batch))
                self._recorder.quick = False  # the backward has to decide it
                return
            if sample_dim == UNKNOWN:
                return
        if sample_dim:
            samples = batches.leading_shape(batch)[1]
        elif self._may_hold_graphs.get(key, True):
            samples = self._count_once_looked_at(key, args, kwargs)
        else:
            samples = batches.count_samples(batch)
        if samples > self.direct_samples:
            self.direct_samples = samples
            first = args[0] if args else None
            self._largest = weakref.ref(first) if isinstance(first, torch.Tensor) else _nobody
            self._count_direct_tokens((*args, kwargs) if args and kwargs else batch, sample_dim)

    def _count_direct_tokens(self, batch: Any, sample_dim: int | None) -> None:
        """Tokens of the largest input so far."""
        self._direct_tokens, key = None, self._direct_key
        self._direct_padded = UNKNOWN if key is None else batches.padded_size(batch, key)
        if self.counted_row > self._recorder.rows or not self._counts_row():
            return
        self._look_whether_input_stays(batch)
        self._direct_tokens = counted = self._count_tokens(batch, sample_dim, key)
        if counted is not None:
            self._direct_padded = counted[0] + counted[1]
            if key is None:
                self._direct_key = batches.sequence_key(batch)

    def _look_whether_input_stays(self, batch: Any) -> None:
        """A tensor that an earlier row trained on too is no batch of a larger set: there is no larger one to take."""
        tensor, (seen, row) = batches.first_tensor(batch), self._direct_input
        if tensor is None:
            return
        if seen() is tensor and row < self._recorder.rows:
            self.input_stays = True
        elif seen() is not tensor:
            self._direct_input = (weakref.ref(tensor), self._recorder.rows)

    def decide_sample_dim(self, learning: bool) -> None:
        """The forward is over: the modules inside have shown how many samples they got, unless they were not seen."""
        if self.undecided is None:
            return
        (key, shape), self.undecided = self.undecided, None
        dim = batches.find_sample_dim(shape, self._inner_batches)
        if dim is not None:
            self.direct_samples = max(self.direct_samples, shape[dim])
        elif not learning:
            dim = UNKNOWN
        self.time_first[key] = dim

    def _count_once_looked_at(self, key: int, args: Any, kwargs: Any) -> int:
        """Samples in the inputs of a model of which it is not known that it takes no graphs and no lists of samples."""
        values = (*args, *kwargs.values())
        if len(values) == 1 and batches.lists_samples(values[0]):
            self._may_hold_graphs[key] = True
            return len(values[0])
        graphs = batches.count_graphs(values)
        if len(self._may_hold_graphs) > 1_000:
            self._may_hold_graphs.clear()
        self._may_hold_graphs[key] = graphs != batches.NO_GRAPHS
        if graphs == batches.NO_GRAPHS:
            return batches.count_samples(args if args else kwargs)
        return max(0, graphs)

    def add_direct(self) -> None:
        """A backward begins: what its forwards were given is added to the row.

        An optimizer that evaluates a closure several times (LBFGS) learns from one batch: the same tensor counts once,
        and where each evaluation made its own the row's samples are unknown.
        """
        recorder, row = self._recorder, self._recorder.row
        samples, self.direct_samples = self.direct_samples, 0
        counted, self._direct_tokens = self._direct_tokens, None
        padded, self._direct_padded = self._direct_padded, UNKNOWN
        largest, self._largest = self._largest, _nobody
        if OPTIMIZER in recorder.stack:
            before, self._in_closure = self._in_closure, (recorder.rows, largest)
            if before[0] == recorder.rows:
                if largest() is None or before[1]() is not largest():
                    row[SAMPLES] = UNKNOWN
                    forget_tokens(row)
                return
        row[SAMPLES] += samples
        if padded != UNKNOWN:
            row[PADDED] = max(0, row[PADDED]) + padded
        if counted is not None:
            _add_tokens(row, counted)

    def drop_direct(self) -> None:
        """The first forward of this row was of a batch that had been fetched, and counted, in the row before."""
        row = self._recorder.row
        row[SAMPLES] = self.direct_samples = 0
        forget_tokens(row)
        self._direct_tokens, self._direct_padded = None, UNKNOWN

    def meet(self, module: Any, args: Any) -> None:
        """An outermost module that learns was not known before."""
        self.time_first.pop(id(module), None)
        self._may_hold_graphs.pop(id(module), None)
        if any(getattr(part, "batch_first", None) is False for part in module.modules()):
            self.time_first[id(module)] = None
            self.note_inner_batch(module, args)

    def note_inner_batch(self, module: Any, args: Any) -> None:
        """Remember how many samples a module got whose inputs say which dimension is which."""
        if getattr(module, "batch_first", None) is False and len(self._inner_batches) < 8:
            size = batches.inner_batch_size(args)
            if size is not None:
                self._inner_batches.add(size)


def forget_tokens(row: Row[int]) -> None:
    """A batch that was counted turned out not to be trained on in this row."""
    row[PADDED] = row[TOKENS] = row[PADDING] = row[LONGEST] = UNKNOWN


def _add_tokens(row: Row[int], counted: tuple[int, int, int]) -> None:
    row[TOKENS] = max(0, row[TOKENS]) + counted[0]
    row[PADDING] = max(0, row[PADDING]) + counted[1]
    row[LONGEST] = max(0, row[LONGEST]) + counted[2]


def _nobody() -> None:
    """In the place of a weak reference while there is nothing to refer to."""
