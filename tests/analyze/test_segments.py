from typing import Any

import numpy as np
import pytest

from hotloop.core.recording import FIELD, FLAG_WATCHED_ALL, UNKNOWN
from hotloop.evidence.analyze.segments import Steps, build_steps

from .synthetic import MS, Rows

Segment = tuple[str, dict[str, Any]]
"""What closes it, by the methods of Rows, and its fields."""
Turns = list[tuple[int, list[Segment]]]
"""So many times these segments in turn."""


def step(optimizer: int = 0, **fields: int) -> Segment:
    return "step", {"optimizer": optimizer, **fields}


def skipped(optimizer: int = 0) -> Segment:
    return "skipped", {"optimizer": optimizer}


def backward(**fields: int) -> Segment:
    return "backward", fields


def end(**fields: int) -> Segment:
    return "end", fields


def rows_of(turns: Turns) -> Rows:
    rows = Rows()
    for count, segments in turns:
        for closing, fields in segments * count:
            getattr(rows, closing)(**fields)
    return rows


def steps_of(*turns: tuple[int, list[Segment]], closed: bool = True) -> Steps:
    return build_steps(rows_of(list(turns)).array(), closed=closed)


PAIR = [step(0), step(1)]
CASES: dict[str, tuple[Turns, int, int | None]] = {
    "no rows": ([], 0, None),
    "rows without any step": ([(1, [end(other_ns=5 * MS)])], 0, None),
    "every row of a single optimizer": ([(5, [step()])], 5, 0),
    "backwards where no optimizer was seen": ([(7, [backward()])], 7, None),
    "a long training by hand before an optimizer": ([(100, [backward()]), (20, [step()])], 120, 0),
    "many small batches of the first step": (
        [(64, [backward()]), (1, [step(backwards=0)]), (30, [step(backwards=64)])],
        31,
        0,
    ),
    "a pair in turn": ([(20, PAIR)], 20, 1),
    "five critic steps and one of the generator": ([(20, [*[step(0)] * 5, step(1)])], 20, 1),
    "a delayed actor": ([(30, [step(0), step(0), step(1)])], 30, 1),
    "an optimizer that steps rarely": ([(3, [*[step(0)] * 300, step(1)]), (100, [step(0)])], 1000, 0),
    "two optimizers after one backward": ([(30, [step(0), step(1, backwards=0, forward_ns=0, backward_ns=0)])], 30, 1),
    "an optimizer of every second iteration": ([(30, [step(0), step(0), step(1, backwards=0)])], 60, 0),
    "one optimizer a parameter": ([(12, [*(step(i, backwards=0) for i in range(15)), step(15)])], 12, 15),
    "many optimizers inside one backward": ([(1, [step(i, backwards=0) for i in range(16)])], 1, 15),
    "one step of a pair": ([(1, PAIR)], 1, 1),
    "a new optimizer in every step": ([(1, [step(i) for i in range(40)])], 40, 0),
    "inner optimizers of a meta training": (
        [(1, [*[step(0)] * 5, step(1)]), *((1, [*[step(task)] * 5, step(1)]) for task in range(2, 31))],
        30,
        1,
    ),
    "a block": ([(10, [step()]), (1, [step(rows_merged=100)])], 110, 0),
    "a block of a pair is half its rows": ([(10, PAIR), (1, [step(1, rows_merged=100)])], 60, 1),
    "blocks of backwards": ([(10, [backward()]), (1, [backward(rows_merged=8)])], 18, None),
    "blocks only": ([(4, [step(rows_merged=50)])], 200, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_optimizer_that_closes_steps_and_how_many_there_are(name: str) -> None:
    turns, count, anchor = CASES[name]
    steps = steps_of(*turns)
    assert (steps.count, steps.anchor_index) == (count, anchor)


def test_backwards_before_the_first_optimizer_step_belong_to_the_first_step() -> None:
    steps = steps_of((4, [backward()]), (1, [step(backwards=0)]), (5, [step(backwards=4)]))
    assert steps.columns["backwards"].tolist() == [4] * 6
    assert steps.step_ns[0] == 50 * MS


def test_skipped_steps_are_steps_and_counted_apart() -> None:
    steps = steps_of((2, [skipped(), *[step()] * 4]))
    assert (steps.count, steps.skipped_count) == (10, 2)


def test_a_pair_cut_in_the_middle_keeps_its_anchor_and_has_a_tail() -> None:
    steps = steps_of((20, PAIR), (1, [step(0)]))
    assert (steps.count, steps.anchor_index, steps.tail_ns) == (20, 1, 10 * MS)
    assert steps.columns["backwards"].tolist() == [2] * 20


def test_a_pretrained_discriminator_belongs_to_the_first_step() -> None:
    steps = steps_of((3, [step(0)]), (20, PAIR))
    assert steps.anchor_index == 1
    assert steps.columns["rows_merged"].tolist() == [5] + [2] * 19


def test_a_new_optimizer_per_fold_goes_on_with_the_steps() -> None:
    steps = steps_of(*((20, [step(fold)]) for fold in range(3)))
    assert (steps.count, steps.anchor_count) == (60, 3)
    assert steps.optimizer_steps == {0: 20, 1: 20, 2: 20}


def test_the_tail_is_outside_every_step_and_unknown_of_a_killed_process() -> None:
    steps = steps_of((3, [step()]), (1, [end(other_ns=7 * MS)]))
    assert (steps.tail_ns, int(steps.step_ns.sum())) == (7 * MS, 30 * MS)
    assert steps_of((1, [step()]), closed=False).tail_ns is None
    assert steps_of((1, [step()])).tail_ns == 0


def test_unknown_survives_a_merge_only_where_it_must() -> None:
    first = step(0, samples=16, tokens=100, recompute_ns=5, flags=FLAG_WATCHED_ALL, rss_bytes=7)
    columns = steps_of((3, [first, step(1, samples=UNKNOWN, recompute_ns=UNKNOWN, rss_bytes=9)])).columns
    merged = {"samples": 16, "tokens": 100, "recompute_ns": UNKNOWN, "synced_backwards": UNKNOWN, "rss_bytes": 9}
    assert {name: columns[name].tolist() for name in merged} == {name: [value] * 3 for name, value in merged.items()}
    assert (columns["flags"] & FLAG_WATCHED_ALL).tolist() == [0] * 3


@pytest.mark.parametrize(("turn", "row", "kept"), [(PAIR, 7, (8, 1)), ([step()] * 2, 4, (19, 0))])
def test_steps_with_lost_rows_in_their_middle_are_left_out(
    turn: list[Segment], row: int, kept: tuple[int, int]
) -> None:
    array = np.delete(rows_of([(10, turn)]).array(), row, axis=0)
    steps = build_steps(array, closed=True)
    assert (steps.count, steps.broken_count) == kept


@pytest.mark.parametrize("optimizers", [1, 2, 3])
def test_rows_of_a_step_are_numbered_without_holes(optimizers: int) -> None:
    steps = steps_of((6, [step(i) for i in range(optimizers)]))
    assert (steps.last_row - steps.first_row + 1).tolist() == [optimizers] * 6
    assert steps.last_row[-1] == 6 * optimizers - 1


def test_time_that_is_left_out_between_the_rows_of_a_step_breaks_no_law() -> None:
    rows = rows_of([(1, [backward()])])
    rows.clock_ns += 15 * MS  # hotloop timed a piece of work of its own
    rows.step(backwards=0)
    rows.step()
    assert build_steps(rows.array(), closed=True).unequal_rows_count == 0
    rows.rows[-1][FIELD["end_ns"]] += 1
    assert build_steps(rows.array(), closed=True).unequal_rows_count == 1
