"""Batches and model inputs -> samples and tokens of the current row.

What a DataLoader gives is counted batch by batch; where there is none, the largest input of a model before each
backward is. Which dimension counts samples is found out, not assumed.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from hotloop.core.events import COPIED_FRAMES, COPIED_IDS, COPIED_KEY_MASK, HAS_SEQUENCES, split_sizes
from hotloop.core.recording import FIELD, UNKNOWN

from .recorder import OPTIMIZER, Recorder, Row

if TYPE_CHECKING:
    from .loaders import LoaderState

SAMPLES = FIELD["samples"]
PADDED = FIELD["padded_tokens"]
TOKENS = FIELD["tokens"]
PADDING = FIELD["padding_tokens"]
LONGEST = FIELD["longest_tokens"]
MOST_ROWS_SINCE = 2
"""An input that comes again within this many rows was there all the time."""


Counted = tuple[int, int, int]
"""Tokens, padding, and elements if each batch were padded only to its own longest sample."""
_CODES = {1: "b", 2: "h", 4: "i", 8: "q"}


class Counting:
    """``direct_samples`` wait for a backward."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.direct_samples = 0
        self._direct_tokens: Counted | None = None
        self._direct_padded = UNKNOWN
        self._direct_holds_sequences = False
        self._largest = 0
        self._last_input: tuple[int, int] = (0, UNKNOWN)
        self._in_closure: tuple[int, int] = (UNKNOWN, 0)
        """The row of the last backward inside an optimizer's step, and the input that it learned from."""
        self._copy: tuple[bytes, int, int, int, int] | None = None
        self.input_stays = False
        self.time_first: dict[int, int | None] = {}
        """For every outermost module that holds one with ``batch_first=False``: the dimension of its input that counts
        samples, None while that is not decided, UNKNOWN where it cannot be determined."""
        self._undecided: tuple[int, tuple[int, int]] | None = None
        self.inner_batches: set[int] = set()
        """Batch sizes seen at modules with ``batch_first=False``, whose inputs say which dimension is which."""

    # -- copies ---------------------------------------------------------------------------------------------------

    def copied(self, data: bytes, what: int, rows: int, columns: int, item: int) -> None:
        """A copy of the batch that comes, or of what the running forward was given."""
        self._copy = (data, what, rows, columns, item)

    def take_copy(self, sample_dim: int) -> Counted | None:
        copy, self._copy = self._copy, None
        return None if copy is None else count_padding(*copy, sample_dim)

    # -- loaders --------------------------------------------------------------------------------------------------

    def settle_samples(self, state: LoaderState, declared: int, first: int, second: int) -> int:
        """Samples of a batch; 0 when that cannot be determined.

        A loader that makes the batches says how many samples they hold, all but the last one. Where it does not say it,
        the modules inside a model that takes time first do.
        """
        if state.batch_size is None and not self.time_first:
            return declared if declared > 0 else first
        if declared > 0:
            return declared
        known: Collection[int] = self.inner_batches if state.batch_size is None else (state.batch_size,)
        shape = (first, second)
        if state.sample_dim is None:
            state.sample_dim = find_sample_dim(shape, known)
            if state.sample_dim is None:
                return self._settle_listed(state, -declared)
        count = shape[state.sample_dim]
        if state.batch_size is None or count <= state.batch_size:
            return count
        if shape[1] == state.batch_size:  # the first batches were as long as they were many
            state.sample_dim = 1
            return state.batch_size
        return 0

    @staticmethod
    def _settle_listed(state: LoaderState, listed: int) -> int:
        """Samples of a batch that lists them, once a list was as long as the loader's batches are known to be."""
        if state.batch_size is None or listed > state.batch_size:
            return 0
        state.lists_samples = state.lists_samples or listed == state.batch_size > 1
        return listed if state.lists_samples else 0

    # -- inputs ---------------------------------------------------------------------------------------------------

    def count_direct(self, key: int, flags: int, identity: int, lead: int, sequences: int) -> None:
        """Samples and tokens of a training without a DataLoader: the largest model input before each backward."""
        shape = split_sizes(lead)
        sample_dim: int | None = 0
        if key in self.time_first:
            sample_dim = self.time_first[key]
            if sample_dim is None:
                self._undecided = (key, shape)
                return
            if sample_dim == UNKNOWN:
                return
        samples = shape[sample_dim or 0]
        if samples <= self.direct_samples:
            return
        self.direct_samples, self._largest = samples, identity
        self._direct_tokens = None
        self._direct_padded = UNKNOWN
        if self._direct_holds_sequences and flags & HAS_SEQUENCES:
            long, wide = split_sizes(sequences)
            self._direct_padded = long * wide
        row, (last, last_row) = self._recorder.rows, self._last_input
        if identity and identity == last and 0 < row - last_row <= MOST_ROWS_SINCE:
            self.input_stays = True
        self._last_input = (identity, row)

    def count_direct_copy(self, key: int) -> None:
        """The copy that was taken is of what this forward was given."""
        counted = self.take_copy(self.time_first.get(key) or 0)
        if counted is not None:
            self._direct_tokens, self._direct_holds_sequences = counted, True
            self._direct_padded = counted[0] + counted[1]

    def decide_sample_dim(self) -> None:
        """The forward is over: the modules inside have shown how many samples they got, unless they were not seen."""
        if self._undecided is None:
            return
        (key, shape), self._undecided = self._undecided, None
        dim = find_sample_dim(shape, self.inner_batches)
        if dim is not None:
            self.direct_samples = max(self.direct_samples, shape[dim])
        self.time_first[key] = UNKNOWN if dim is None else dim

    def add_direct(self) -> None:
        """A backward begins: what its forwards were given is added to the row.

        An optimizer that evaluates a closure several times (LBFGS) learns from one batch: the same tensor counts once,
        and where each evaluation made its own the row's samples are unknown.
        """
        recorder, row = self._recorder, self._recorder.row
        samples, self.direct_samples = self.direct_samples, 0
        counted, self._direct_tokens = self._direct_tokens, None
        padded, self._direct_padded = self._direct_padded, UNKNOWN
        largest, self._largest = self._largest, 0
        if OPTIMIZER in recorder.stack:
            before, self._in_closure = self._in_closure, (recorder.rows, largest)
            if before[0] == recorder.rows:
                if not largest or before[1] != largest:
                    row[SAMPLES] = UNKNOWN
                    forget_tokens(row)
                return
        row[SAMPLES] += samples
        if padded != UNKNOWN:
            row[PADDED] = max(0, row[PADDED]) + padded
        if counted is not None:
            add_tokens(row, counted)

    def drop_direct(self) -> None:
        """The first forward of this row was of a batch that had been fetched, and counted, in the row before."""
        row = self._recorder.row
        row[SAMPLES] = self.direct_samples = 0
        forget_tokens(row)
        self._direct_tokens, self._direct_padded = None, UNKNOWN


def find_sample_dim(shape: tuple[int, int], batch_sizes: Collection[int]) -> int | None:
    """Which of the two dimensions counts samples, 0 or 1: the one as long as a batch is known to be.

    None when neither is, or when each of them is another known length. A second dimension of length one says nothing.
    """
    is_leading, is_second = shape[0] in batch_sizes, shape[1] > 1 and shape[1] in batch_sizes
    if is_leading and is_second and shape[0] != shape[1] and len(batch_sizes) > 1:
        return None
    return 0 if is_leading else 1 if is_second else None


def forget_tokens(row: Row[int]) -> None:
    """A batch that was counted turned out not to be trained on in this row."""
    row[PADDED] = row[TOKENS] = row[PADDING] = row[LONGEST] = UNKNOWN


def add_tokens(row: Row[int], counted: Counted) -> None:
    row[TOKENS] = max(0, row[TOKENS]) + counted[0]
    row[PADDING] = max(0, row[PADDING]) + counted[1]
    row[LONGEST] = max(0, row[LONGEST]) + counted[2]


# Padding


def count_padding(data: bytes, what: int, rows: int, columns: int, item: int, sample_dim: int = 0) -> Counted | None:
    """The content of a copy of ``rows`` x ``columns`` elements of ``item`` bytes; None when it holds no sequences.

    ``sample_dim`` says which dimension counts samples where there is no mask; the other one is time. Padding is read
    from a mask, else from equal trailing values of integer rows, or all-zero trailing frames.

    >>> count_padding(bytes([1, 1, 0, 1, 0, 0]), 0, 2, 3, 1)
    (3, 3, 4)
    """
    if rows <= 0 or columns <= 0 or item <= 0 or len(data) != rows * columns * item:
        return None
    values: Any
    if what == COPIED_FRAMES:
        values = [data.count(0, at, at + item) != item for at in range(0, len(data), item)]
    else:
        values = array(_CODES.get(item, "b"), data)
    if what in (COPIED_FRAMES, COPIED_IDS) and sample_dim == 1:
        lines = [values[column::columns] for column in range(columns)]
    else:
        lines = [values[at : at + columns] for at in range(0, len(values), columns)]
    if what == COPIED_IDS:
        return _count_ids(lines)
    if what == COPIED_KEY_MASK and not all(line[0] for line in lines):  # such masks are true where padded
        lines = [[not value for value in line] for line in lines]
    longest = max(_trim(line, 0) for line in lines) * len(lines)
    if what == COPIED_FRAMES:
        padding = len(values) - sum(_trim(line, 0) for line in lines)
        return None if padding * 100 < len(values) * 2 else (len(values) - padding, padding, longest)
    padding = sum(line.count(0) for line in lines)
    return len(values) - padding, padding, longest


def _trim(line: Sequence[int], pad: int) -> int:
    """The length without what ends the line."""
    end = len(line)
    while end and line[end - 1] == pad:
        end -= 1
    return end


def _count_ids(lines: Sequence[Any]) -> Counted | None:
    size, columns = len(lines) * len(lines[0]), len(lines[0])
    if columns < 2:
        return None
    pad, count = Counter(line[-1] for line in lines).most_common(1)[0]
    whole = (size, 0, size)
    if count * 4 < len(lines):
        return whole
    lengths = [_trim(line, pad) for line in lines]
    padding = size - sum(lengths)
    # A pad number is reserved: in categories or plain text the same value also occurs elsewhere. And one value at the
    # end of one row of a small batch is a token like any other.
    elsewhere = sum(line.count(pad) for line in lines) - padding
    if elsewhere * 1000 > size or padding < 2 or padding * 100 < size * 2:
        return whole
    return size - padding, padding, max(lengths) * len(lines)
