"""Rows of a recording -> steps: which optimizer closes a step, and the segments of each step summed into one; and when
steps ended, on the clock of the recording, which is what ranks have in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hotloop.core.recording import (
    CLOSED_BY_BACKWARD,
    CLOSED_BY_OPTIMIZER,
    CLOSED_BY_SCALER_SKIP,
    FIELD,
    FLAG_WATCHED_ALL,
    GAP_FIELDS,
    STEP_FIELDS,
    TIME_FIELDS,
    UNKNOWN,
)

IntColumn: TypeAlias = npt.NDArray[np.int64]
BoolColumn: TypeAlias = npt.NDArray[np.bool_]

IDENTITY_FIELDS = ("index", "closed_by", "optimizer_index", "start_ns", "end_ns", "flags")
"""Fields that identify the row; each of them is merged in its own way."""
LEVEL_FIELDS = ("rss_bytes", "device_allocated_bytes", "device_reserved_bytes")
"""Fields that contain the last known level of something; a step has the level of its last row."""
KNOWN_IF_ALL_FIELDS = (
    "recompute_ns",
    "device_forward_ns",
    "device_backward_ns",
    "device_optimizer_ns",
    "device_h2d_ns",
)
"""Measured sums that are unknown for the step as soon as they are unknown for one of its rows."""
WORK_FIELDS = ("samples", "padded_tokens", "tokens", "padding_tokens", "longest_tokens")
"""The work of a step, from the rows that fetched it."""
KNOWN_IF_ANY_FIELDS = ("synced_backwards", *WORK_FIELDS)
"""Counts that belong to the rows that saw a batch; the other rows of the step have nothing to add."""
MAYBE_UNKNOWN_FIELDS = frozenset((*LEVEL_FIELDS, *KNOWN_IF_ALL_FIELDS, *KNOWN_IF_ANY_FIELDS))

UNSEEN_FIELDS = ("input_wait_ns", "iterator_ns", "h2d_ns", *GAP_FIELDS)
"""Time fields that say nothing about what a program computes meanwhile."""

EQUALLY_REGULAR_CV = 0.1
"""Coefficients of variation closer than this to the best one count as a tie: an optimizer that steps in every iteration
except for a rare extra one of another optimizer (every 100th or rarer) still closes the step."""
RARE_RATIO = 0.02
"""An optimizer with fewer steps than this share of the busiest one's cannot be the anchor of its stage."""
CHUNK_ROWS = 2048
"""Rows turned into columns at a time: about a megabyte."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of one process as columns, in order of time.

    An entry is one step, or a block of ``weight`` steps whose fields are sums. ``tail_ns`` is the time after the last
    step; None if the recording breaks off right after it.
    """

    columns: Mapping[str, IntColumn]
    weight: IntColumn
    first_row: IntColumn
    """Number of the first row of each entry."""
    last_row: IntColumn
    is_block: BoolColumn
    """True for entries with a row that already was several rows at once."""
    step_ns: IntColumn
    """Sum of the time fields of each entry."""
    anchor_index: int | None
    """Index of the optimizer that closes most of the steps; None if backwards close them."""
    anchor_count: int
    """How many optimizers close steps (stages of a training that make a new optimizer each)."""
    optimizer_steps: Mapping[int, int]
    """Steps of every optimizer that was seen, by its index."""
    skipped_count: int
    """Anchor steps that a GradScaler skipped."""
    broken_count: int
    """Steps left out because rows in their middle were lost."""
    unequal_rows_count: int
    """Single rows whose time fields do not sum to their window; hotloop's own time may be between two rows."""
    tail_ns: int | None
    begin_ns: int
    """When the first row began."""
    end_ns: int
    """When the last row ended, including that of the tail."""
    tail: Mapping[str, int] | None
    """The fields after the last step, summed over its rows; None if ``tail_ns`` is."""

    @property
    def count(self) -> int:
        return int(self.weight.sum())


def build_steps(rows: IntColumn, *, closed: bool) -> Steps:
    """The steps in ``rows`` (n x STEP_FIELDS); none if nothing was ever stepped.

    ``closed`` says that the process ended its recording itself, so that nothing is missing after the last row.
    """
    raw = _split_columns(rows)
    closed_by, index = raw["closed_by"], raw["index"]
    optimizer = raw["optimizer_index"]
    merged = np.maximum(raw["rows_merged"], 1)
    backwards = np.maximum(raw["backwards"], 0)
    steps_closed = find_closed_steps(closed_by, optimizer, backwards, merged)
    ends = np.flatnonzero(steps_closed)
    is_closing = _is_optimizer_row(closed_by)
    behind = slice(int(ends[-1]) + 1 if len(ends) else len(index), None)
    has_tail = bool(len(index[behind])) or closed
    tail = {name: int(column[behind].sum()) if len(column[behind]) else 0 for name, column in raw.items()}

    starts = np.concatenate(([0], ends[:-1] + 1)).astype(np.int64) if len(ends) else ends
    columns = {name: _merge(column, name, starts, ends) for name, column in raw.items()}
    if len(ends) < len(index):
        columns |= {name: _merge_work(raw[name], raw["batches"], starts, ends) for name in WORK_FIELDS}
    step_ns = np.zeros(len(ends), dtype=np.int64)
    for name in TIME_FIELDS:
        step_ns += columns[name]
    weight = steps_closed[ends]
    is_block = columns["rows_merged"] > ends - starts + 1
    first_row = columns["index"]
    last_row = index[ends] + merged[ends] - 1

    whole = _whole_steps(index, merged, starts, ends)
    if not whole.all():
        columns = {name: column[whole] for name, column in columns.items()}
        step_ns, weight, is_block = step_ns[whole], weight[whole], is_block[whole]
        first_row, last_row = first_row[whole], last_row[whole]

    anchors, counts = np.unique(optimizer[ends][is_closing[ends]], return_counts=True)
    return Steps(
        columns=columns,
        weight=weight,
        first_row=first_row,
        last_row=last_row,
        is_block=is_block,
        step_ns=step_ns,
        anchor_index=int(anchors[np.argmax(counts)]) if len(anchors) else None,
        anchor_count=len(anchors),
        optimizer_steps=_count_optimizer_steps(optimizer[is_closing], merged[is_closing]),
        skipped_count=int(((closed_by[ends] == CLOSED_BY_SCALER_SKIP) & (merged[ends] <= 1)).sum()),
        broken_count=int((~whole).sum()),
        unequal_rows_count=_count_unequal(raw, merged),
        tail_ns=sum(tail[name] for name in TIME_FIELDS) if has_tail else None,
        begin_ns=int(raw["start_ns"][0]) if len(index) else 0,
        end_ns=int(raw["end_ns"][-1]) if len(index) else 0,
        tail=tail if has_tail else None,
    )


def find_closed_steps(closed_by: IntColumn, optimizer: IntColumn, backwards: IntColumn, merged: IntColumn) -> IntColumn:
    """How many steps of the training every row closes: 0 or 1, or for a block of rows as many as it should contain.

    Optimizers whose lives overlap form a stage, and a stage has one anchor: the optimizer that steps most regularly,
    measured in backwards and in rows; of equally regular ones the busiest, and of equally busy ones the last in its
    turn, so that a step contains the complete turn. Stages follow each other (a new optimizer per fold or per phase of
    training). Without any optimizer, every backward closes a step.
    """
    is_closing = _is_optimizer_row(closed_by)
    is_backward: BoolColumn = closed_by == CLOSED_BY_BACKWARD
    is_block = merged > 1
    if not is_closing.any():
        is_closing, is_anchor = is_backward, is_backward & ~is_block
    else:
        usable = is_closing & ~is_block
        positions = np.flatnonzero(usable)
        is_anchor = usable
        if len(positions):
            anchors = _choose_anchors(optimizer[positions], np.cumsum(backwards)[positions], backwards[positions])
            is_anchor = usable & np.isin(optimizer, anchors)
        if _trained_by_hand_first(is_backward & ~is_block, is_anchor, backwards):
            is_anchor = is_anchor | (is_backward & ~is_block)
    closed = is_anchor.astype(np.int64)
    blocks = is_block & is_closing
    if blocks.any():
        single = is_closing & ~is_block
        share = float(is_anchor[single].mean()) if single.any() else 1.0
        # Rounds the running sum, not every block: small blocks of a long turn would all be rounded the same way.
        closed[blocks] = np.diff(np.floor(np.cumsum(merged[blocks] * share) + 1e-6).astype(np.int64), prepend=0)
    return closed


def _choose_anchors(optimizer: IntColumn, backward_clock: IntColumn, backwards: IntColumn) -> IntColumn:
    """Indices of the optimizers that close steps, one per stage. Arguments: one entry per closing row."""
    ids, inverse = np.unique(optimizer, return_inverse=True)
    if len(ids) == 1:
        return ids
    order = np.argsort(inverse, kind="stable")
    counts = np.bincount(inverse)
    ends = np.cumsum(counts)
    first, last = order[ends - counts], order[ends - 1]
    by_first = np.argsort(first, kind="stable")
    reach = np.maximum.accumulate(last[by_first])
    opens = np.concatenate(([True], first[by_first][1:] > reach[:-1]))
    bounds = np.flatnonzero(np.append(opens, True))

    chosen: list[int] = []
    next_interval: float | None = None
    next_has_one = False
    stage_count = len(bounds) - 1
    for stage in range(stage_count - 1, -1, -1):
        members = by_first[bounds[stage] : bounds[stage + 1]]
        stage_first, stage_last = int(first[members[0]]), int(reach[bounds[stage + 1] - 1])
        row_count = stage_last - stage_first + 1
        if chosen:
            if next_interval is not None and row_count < next_interval:
                continue  # an inner loop before the first outer step: it belongs to that step
            if next_has_one and row_count == 1:
                # One step of many optimizers that step inside one backward, or of a pair; not one optimizer per step.
                inside_backward = not backwards[stage_first + 1 : stage_last + 2].any()
                if inside_backward or stage_count == 2:
                    continue
        only = int(members[0]) if len(members) == 1 else None
        winner = _most_regular(members, order, ends, counts, backward_clock) if only is None else only
        chosen.append(winner)
        rows_of_winner = order[ends[winner] - counts[winner] : ends[winner]]
        next_has_one = len(rows_of_winner) == 1
        next_interval = float(np.median(np.diff(rows_of_winner))) if len(rows_of_winner) > 1 else None
    return ids[np.array(chosen, dtype=np.int64)]


def _most_regular(
    members: IntColumn,
    order: IntColumn,
    ends: IntColumn,
    counts: IntColumn,
    backward_clock: IntColumn,
) -> int:
    busiest = int(counts[members].max())
    span = {int(m): int(order[ends[m] - 1] - order[ends[m] - counts[m]]) for m in members}
    # An optimizer that steps only in a short part of the stage, or hardly ever, does not pace it, however even.
    candidates = [
        m
        for m in span
        if counts[m] >= max(min(3, busiest), RARE_RATIO * busiest) and span[m] >= 0.5 * max(span.values())
    ]
    candidates = candidates or [max(span, key=lambda m: int(counts[m]))]
    variation: dict[int, float] = {}
    for member in candidates:
        rows = order[ends[member] - counts[member] : ends[member]]
        variation[member] = min(_variation(rows), _variation(backward_clock[rows]))
    limit = min(variation.values()) + EQUALLY_REGULAR_CV
    regular = [m for m in candidates if variation[m] <= limit]
    most = max(int(counts[m]) for m in regular)
    # The run may end, or be cut, within a turn: then the early ones of a turn have one step more.
    busy = [m for m in regular if counts[m] >= min(most - 1, 0.98 * most)] if most > 1 else regular
    return max(busy, key=lambda m: int(order[ends[m] - counts[m]]))


def _variation(clock: IntColumn) -> float:
    """Coefficient of variation of the intervals between the entries of ``clock``; infinite if they are all empty."""
    if len(clock) < 2:
        return 0.0
    intervals = np.diff(clock)
    mean = float(intervals.mean())
    return float(intervals.std()) / mean if mean > 0 else float("inf")


def _trained_by_hand_first(is_backward: BoolColumn, is_anchor: BoolColumn, backwards: IntColumn) -> bool:
    """True if the rows closed by backwards are a training of their own, not the first step's accumulation."""
    hand_count = int(is_backward.sum())
    ends = np.flatnonzero(is_anchor)
    if hand_count <= 10 or len(ends) < 3 or hand_count <= len(ends):
        return False
    clock = np.cumsum(backwards)[ends]
    return hand_count > 4 * max(1.0, float(np.median(np.diff(clock))))


def _count_optimizer_steps(optimizer: IntColumn, merged: IntColumn) -> dict[int, int]:
    """Rows that every optimizer closed; the contents of blocks are divided in the proportions of the other rows."""
    known = optimizer[merged <= 1] if (merged <= 1).any() else optimizer
    ids, counts = np.unique(known, return_counts=True)
    scale = int(merged.sum()) / max(1, len(known))
    return {int(i): round(int(n) * scale) for i, n in zip(ids, counts, strict=True)}


def _count_unequal(raw: Mapping[str, IntColumn], merged: IntColumn) -> int:
    in_fields = np.sum([raw[name] for name in TIME_FIELDS], axis=0)
    return int(((merged == 1) & (in_fields != raw["end_ns"] - raw["start_ns"])).sum())


def _whole_steps(index: IntColumn, merged: IntColumn, starts: IntColumn, ends: IntColumn) -> BoolColumn:
    """False for steps that lost rows in their middle, which a jump of the row numbers shows."""
    whole = np.ones(len(ends), dtype=np.bool_)
    if len(index) < 2 or not len(ends):
        return whole
    jumps = np.concatenate(([False], index[1:] > index[:-1] + merged[:-1]))
    if not jumps.any():
        return whole
    many_rows = float(np.median(ends - starts)) >= 1
    before = np.cumsum(jumps)
    inside = before[ends] - before[starts]
    whole[inside != 0] = False
    if many_rows:  # rows missing before the first row may have belonged to this step
        whole &= ~jumps[starts]
    return whole


def _merge(column: IntColumn, name: str, starts: IntColumn, ends: IntColumn) -> IntColumn:
    """One field of the rows ``starts[i]..ends[i]`` as one value for every i."""
    if not len(ends):
        return np.zeros(0, dtype=np.int64)
    column = column[: ends[-1] + 1]
    if len(starts) == len(column):
        return column
    if name in ("index", "start_ns"):
        return column[starts]
    if name in ("closed_by", "optimizer_index", "end_ns"):
        return column[ends]
    if name == "flags":
        every: IntColumn = np.bitwise_and.reduceat(column, starts) & FLAG_WATCHED_ALL
        some: IntColumn = np.bitwise_or.reduceat(column, starts) & ~FLAG_WATCHED_ALL
        return some | every
    if name in LEVEL_FIELDS:
        return np.where(column[ends] >= 0, column[ends], np.maximum.reduceat(column, starts))
    if name in KNOWN_IF_ALL_FIELDS:
        unknown = np.minimum.reduceat(column, starts) < 0
        return np.where(unknown, UNKNOWN, np.add.reduceat(column, starts))
    if name in KNOWN_IF_ANY_FIELDS:
        known = np.maximum.reduceat(column, starts) >= 0
        return np.where(known, np.add.reduceat(np.maximum(column, 0), starts), UNKNOWN)
    return np.add.reduceat(column, starts)


def _is_optimizer_row(closed_by: IntColumn) -> BoolColumn:
    is_row: BoolColumn = (closed_by == CLOSED_BY_OPTIMIZER) | (closed_by == CLOSED_BY_SCALER_SKIP)
    return is_row


def _merge_work(work: IntColumn, batches: IntColumn, starts: IntColumn, ends: IntColumn) -> IntColumn:
    """Samples or tokens of each step: of the rows that fetched batches if it has such rows, because a further row of
    the step (the generator after the discriminator) works on the same ones; else of all its rows."""
    if not len(ends):
        return np.zeros(0, dtype=np.int64)
    fetched = batches[: ends[-1] + 1] > 0
    everything = _merge(work, "samples", starts, ends)
    of_batches = _merge(np.where(fetched, work[: ends[-1] + 1], UNKNOWN), "samples", starts, ends)
    return np.where(of_batches > 0, of_batches, everything)


def _split_columns(rows: IntColumn) -> dict[str, IntColumn]:
    """Every field of the rows as a column of its own; times are never negative."""
    columns = np.empty((len(STEP_FIELDS), len(rows)), dtype=np.int64)
    for start in range(0, len(rows), CHUNK_ROWS):  # a chunk fits the cache; entire strided columns do not
        columns[:, start : start + CHUNK_ROWS] = rows[start : start + CHUNK_ROWS].T
    split: dict[str, IntColumn] = {name: columns[i] for name, i in FIELD.items()}
    for name in TIME_FIELDS:
        np.maximum(split[name], 0, out=split[name])
    return split


MOST_ENDS = 4_096


@dataclass(frozen=True, slots=True, eq=False)
class StepEnds:
    """At most about MOST_ENDS steps, evenly drawn; ranks of one training draw the same ones."""

    row: IntColumn
    """Number of the last row of each step: the same step has the same number on every rank."""
    done: IntColumn
    """Steps completed with it."""
    marks_ns: npt.NDArray[np.int64]
    """n x 3: when the step ended, when its optimizer began, when its backward ended."""
    saved_after: int | None
    """Steps that were completed at the last checkpoint that was seen; None without any."""

    def at_step(self, done: float) -> float:
        """Clock of the recording, in ns, when this many steps were completed; the nearest known value."""
        return float(np.interp(done, self.done, self.marks_ns[:, 0]))


def find_step_ends(steps: Steps) -> StepEnds:
    """The last is exact; for a block, optimizer and gap are means of its steps."""
    columns, done = steps.columns, np.cumsum(steps.weight)
    saved = np.flatnonzero(columns["checkpoints"] > 0)
    saved_after = int(done[saved[-1]] - steps.weight[saved[-1]]) if len(saved) else None
    if steps.tail is not None and steps.tail["checkpoints"] > 0:
        saved_after = int(done[-1])
    stride = 1
    while len(done) > stride * MOST_ENDS:
        stride *= 2
    # By number and not by position: lost rows of one rank must not shift it against the others.
    drawn = np.arange(len(done)) if stride == 1 else np.flatnonzero((steps.last_row + 1) % stride == 0)
    drawn = np.union1d(drawn, [len(done) - 1])
    end = columns["end_ns"][drawn]
    weight = steps.weight[drawn]
    optimizer = end - columns["optimizer_ns"][drawn] // weight
    # With several micro-batches, the gaps after backward are between them, too.
    single = columns["backwards"][drawn] == weight
    backward = np.where(single, optimizer - columns["after_backward_ns"][drawn] // weight, optimizer)
    return StepEnds(
        row=steps.last_row[drawn],
        done=done[drawn],
        marks_ns=np.stack([end, optimizer, backward], axis=1),
        saved_after=saved_after,
    )
