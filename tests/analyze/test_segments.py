import numpy as np
import pytest

from hotloop.analyze.segments import Steps, build_steps
from hotloop.core.recording import FIELD, FLAG_WATCHED_ALL, UNKNOWN

from .synthetic import MS, Rows


def steps_of(rows: Rows, closed: bool = True) -> Steps:
    return build_steps(rows.array(), closed=closed)


def test_every_row_of_a_single_optimizer_is_a_step():
    rows = Rows()
    for _ in range(5):
        rows.step()
    steps = steps_of(rows)
    assert steps.count == 5
    assert steps.anchor_index == 0
    assert steps.step_ns.tolist() == [10 * MS] * 5


def test_no_rows_are_no_steps():
    assert steps_of(Rows()).count == 0


def test_rows_without_any_step_are_no_steps():
    rows = Rows()
    rows.end(other_ns=5 * MS)
    assert steps_of(rows).count == 0


def test_backwards_close_steps_where_no_optimizer_was_seen():
    rows = Rows()
    for _ in range(7):
        rows.backward()
    steps = steps_of(rows)
    assert steps.count == 7
    assert steps.anchor_index is None


def test_backwards_before_the_first_optimizer_step_belong_to_the_first_step():
    rows = Rows()
    for _ in range(4):
        rows.backward()
    rows.step(backwards=0)
    for _ in range(5):
        rows.step(backwards=4)
    steps = steps_of(rows)
    assert steps.count == 6
    assert steps.columns["backwards"].tolist() == [4] * 6
    assert steps.step_ns[0] == 50 * MS


def test_a_long_training_by_hand_before_an_optimizer_keeps_its_steps():
    rows = Rows()
    for _ in range(100):
        rows.backward()
    for _ in range(20):
        rows.step()
    assert steps_of(rows).count == 120


def test_many_small_batches_of_the_first_step_are_no_training_by_hand():
    rows = Rows()
    for _ in range(64):
        rows.backward()
    rows.step(backwards=0)
    for _ in range(30):
        rows.step(backwards=64)
    assert steps_of(rows).count == 31


def test_skipped_steps_are_steps_and_counted_apart():
    rows = Rows()
    for i in range(10):
        (rows.skipped if i % 5 == 0 else rows.step)()
    steps = steps_of(rows)
    assert (steps.count, steps.skipped_count) == (10, 2)


def test_a_skip_of_an_unnoted_optimizer_belongs_to_the_one_that_steps():
    rows = Rows()
    for i in range(10):
        if i == 3:
            rows.skipped(optimizer=UNKNOWN)
        else:
            rows.step()
    assert steps_of(rows).count == 10


def test_alternating_pair_makes_one_step_that_the_last_closes():
    rows = Rows()
    for _ in range(20):
        rows.step(optimizer=0)
        rows.step(optimizer=1)
    steps = steps_of(rows)
    assert (steps.count, steps.anchor_index) == (20, 1)
    assert steps.columns["backwards"].tolist() == [2] * 20


def test_a_pair_cut_in_the_middle_keeps_its_anchor_and_has_a_tail():
    rows = Rows()
    for _ in range(20):
        rows.step(optimizer=0)
        rows.step(optimizer=1)
    rows.step(optimizer=0)
    steps = steps_of(rows)
    assert (steps.count, steps.anchor_index, steps.tail_ns) == (20, 1, 10 * MS)


def test_five_critic_steps_and_one_of_the_generator_are_one_step():
    rows = Rows()
    for _ in range(20):
        for _ in range(5):
            rows.step(optimizer=0)
        rows.step(optimizer=1)
    steps = steps_of(rows)
    assert (steps.count, steps.anchor_index) == (20, 1)
    assert steps.columns["rows_merged"].tolist() == [6] * 20


def test_a_pretrained_discriminator_belongs_to_the_first_step():
    rows = Rows()
    for _ in range(3):
        rows.step(optimizer=0)
    for _ in range(20):
        rows.step(optimizer=0)
        rows.step(optimizer=1)
    steps = steps_of(rows)
    assert steps.anchor_index == 1
    assert steps.columns["rows_merged"].tolist() == [5] + [2] * 18 + [2]


def test_an_optimizer_that_steps_rarely_does_not_close_steps():
    rows = Rows()
    for i in range(1000):
        rows.step(optimizer=0)
        if i % 300 == 299:
            rows.step(optimizer=1)
    steps = steps_of(rows)
    assert (steps.count, steps.anchor_index) == (1000, 0)


def test_two_optimizers_after_one_backward_are_one_step():
    rows = Rows()
    for _ in range(30):
        rows.step(optimizer=0)
        rows.step(optimizer=1, backwards=0, forward_ns=0, backward_ns=0)
    steps = steps_of(rows)
    assert (steps.count, steps.anchor_index) == (30, 1)


def test_an_optimizer_of_every_second_iteration_leaves_the_step_to_the_steady_one():
    rows = Rows()
    for i in range(60):
        rows.step(optimizer=0)
        if i % 2:
            rows.step(optimizer=1, backwards=0)
    steps = steps_of(rows)
    assert (steps.count, steps.anchor_index) == (60, 0)


def test_delayed_actor_closes_the_step_of_an_actor_critic():
    rows = Rows()
    for _ in range(30):
        rows.step(optimizer=0)
        rows.step(optimizer=0)
        rows.step(optimizer=1)
    steps = steps_of(rows)
    assert (steps.count, steps.anchor_index) == (30, 1)


def test_one_optimizer_per_parameter_is_one_step_per_backward():
    rows = Rows()
    for _ in range(12):
        for i in range(16):
            rows.step(optimizer=i, backwards=0 if i < 15 else 1)
    assert steps_of(rows).count == 12


def test_one_step_of_many_optimizers_inside_one_backward_is_one_step():
    rows = Rows()
    for i in range(16):
        rows.step(optimizer=i, backwards=0)
    assert steps_of(rows).count == 1


def test_one_step_of_a_pair_is_one_step():
    rows = Rows()
    rows.step(optimizer=0)
    rows.step(optimizer=1)
    assert steps_of(rows).count == 1


def test_a_new_optimizer_in_every_step_closes_every_step():
    rows = Rows()
    for i in range(40):
        rows.step(optimizer=i)
    assert steps_of(rows).count == 40


def test_a_new_optimizer_per_fold_goes_on_with_the_steps():
    rows = Rows()
    for fold in range(3):
        for _ in range(20):
            rows.step(optimizer=fold)
    steps = steps_of(rows)
    assert (steps.count, steps.anchor_count) == (60, 3)
    assert steps.optimizer_steps == {0: 20, 1: 20, 2: 20}


def test_inner_optimizers_of_a_meta_training_belong_to_the_outer_step():
    rows = Rows()
    for task in range(30):
        for _ in range(5):
            rows.step(optimizer=0 if task == 0 else task + 1)
        rows.step(optimizer=1)
    steps = steps_of(rows)
    assert (steps.count, steps.anchor_index) == (30, 1)


def test_the_tail_is_outside_every_step():
    rows = Rows()
    for _ in range(3):
        rows.step()
    rows.end(other_ns=7 * MS)
    steps = steps_of(rows)
    assert steps.tail_ns == 7 * MS
    assert int(steps.step_ns.sum()) == 30 * MS


def test_the_tail_of_a_killed_process_is_unknown():
    rows = Rows()
    rows.step()
    assert steps_of(rows, closed=False).tail_ns is None
    assert steps_of(rows, closed=True).tail_ns == 0


def test_unknown_survives_a_merge_only_where_it_must():
    rows = Rows()
    for _ in range(3):
        rows.step(optimizer=0, samples=16, tokens=100, recompute_ns=5, flags=FLAG_WATCHED_ALL, rss_bytes=7)
        rows.step(optimizer=1, samples=UNKNOWN, recompute_ns=UNKNOWN, rss_bytes=9)
    steps = steps_of(rows)
    assert steps.columns["samples"].tolist() == [16] * 3
    assert steps.columns["tokens"].tolist() == [100] * 3
    assert steps.columns["recompute_ns"].tolist() == [UNKNOWN] * 3
    assert steps.columns["synced_backwards"].tolist() == [UNKNOWN] * 3
    assert steps.columns["rss_bytes"].tolist() == [9] * 3
    assert (steps.columns["flags"] & FLAG_WATCHED_ALL).tolist() == [0] * 3


def test_a_block_counts_as_its_steps():
    rows = Rows()
    for _ in range(10):
        rows.step()
    rows.step(rows_merged=100, forward_ns=300 * MS, backward_ns=500 * MS, input_wait_ns=100 * MS, optimizer_ns=100 * MS)
    steps = steps_of(rows)
    assert steps.count == 110
    assert steps.weight.tolist() == [1] * 10 + [100]


def test_a_block_of_a_pair_counts_half_its_rows():
    rows = Rows()
    for _ in range(10):
        rows.step(optimizer=0)
        rows.step(optimizer=1)
    rows.step(optimizer=1, rows_merged=100)
    assert steps_of(rows).count == 60


def test_small_blocks_of_a_long_turn_are_counted_right():
    rows = Rows()
    for _ in range(20):
        for _ in range(5):
            rows.step(optimizer=0)
        rows.step(optimizer=1)
    for _ in range(300):
        rows.step(optimizer=0, rows_merged=2)
    steps = steps_of(rows)
    assert steps.count == 120
    assert int(steps.columns["rows_merged"].sum()) == 720


def test_blocks_of_backwards_are_steps_without_an_optimizer():
    rows = Rows()
    for _ in range(10):
        rows.backward()
    rows.backward(rows_merged=8)
    assert steps_of(rows).count == 18


def test_a_recording_of_blocks_only_still_has_steps():
    rows = Rows()
    for _ in range(4):
        rows.step(rows_merged=50)
    assert steps_of(rows).count == 200


def test_steps_with_lost_rows_in_their_middle_are_left_out():
    rows = Rows()
    for _ in range(10):
        rows.step(optimizer=0)
        rows.step(optimizer=1)
    array = np.delete(rows.array(), 7, axis=0)
    steps = build_steps(array, closed=True)
    assert (steps.count, steps.broken_count) == (8, 1)


def test_lost_rows_between_steps_of_one_row_harm_no_step():
    rows = Rows()
    for _ in range(10):
        rows.step()
    steps = build_steps(np.delete(rows.array(), 4, axis=0), closed=True)
    assert (steps.count, steps.broken_count) == (9, 0)


def test_a_negative_time_counts_as_none():
    rows = Rows()
    rows.step()
    array = rows.array()
    array[0, FIELD["other_ns"]] = -5
    assert build_steps(array, closed=True).step_ns.tolist() == [10 * MS]


@pytest.mark.parametrize("optimizers", [1, 2, 3])
def test_rows_of_a_step_are_numbered_without_holes(optimizers):
    rows = Rows()
    for _ in range(6):
        for i in range(optimizers):
            rows.step(optimizer=i)
    steps = steps_of(rows)
    assert (steps.last_row - steps.first_row + 1).tolist() == [optimizers] * 6
    assert steps.last_row[-1] == 6 * optimizers - 1


def test_time_that_is_left_out_between_the_rows_of_a_step_breaks_no_law():
    rows = Rows()
    rows.backward()
    rows.clock_ns += 15 * MS  # hotloop timed a piece of work of its own
    rows.step(backwards=0)
    rows.step()
    assert steps_of(rows).unequal_rows_count == 0
    rows.rows[-1][FIELD["end_ns"]] += 1
    assert steps_of(rows).unequal_rows_count == 1
