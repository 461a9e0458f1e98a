import numpy as np
import pytest

from hotloop.evidence.analyze.partition import find_validation, split_phases, trains_on_others, validation_in_gaps
from hotloop.evidence.analyze.segments import IntColumn, build_steps

from .synthetic import MS, Rows, steps

BURST = {
    "nograd_ns": 20 * MS,
    "iterator_ns": 2 * MS,
    "after_nograd_ns": 3 * MS,
    "burst_input_ns": 2 * MS,
    "burst_gap_ns": 3 * MS,
    "bursts": 1,
}
IN_EVAL_MODE = BURST | {"bursts_eval_mode": 1}
OF_OTHER_LOADER = BURST | {"bursts_other_loader": 1}
TEACHER = {"nograd_ns": 2 * MS, "bursts": 1, "bursts_eval_mode": 1}


def phases_of(rows: Rows) -> dict[str, IntColumn]:
    found = build_steps(rows.array(), closed=True)
    return split_phases(found, find_validation(found))


def test_eval_bursts_at_every_fiftieth_step_are_validation():
    phases = phases_of(steps(IN_EVAL_MODE if i % 50 == 49 else {} for i in range(200)))
    assert phases["validation"][49] == 25 * MS
    assert int(phases["validation"].sum()) == 4 * 25 * MS
    assert phases["forward"].tolist() == [3 * MS] * 200
    assert phases["input_wait"].tolist() == [1 * MS] * 200


def test_bursts_in_eval_mode_of_a_training_that_plays_are_rollouts():
    found = build_steps(steps(IN_EVAL_MODE if i % 50 == 49 else {} for i in range(200)).array(), closed=True)
    assert not find_validation(found, plays=True).passes.any()


def test_bursts_with_another_loader_are_validation_in_train_mode_too():
    rows = steps(OF_OTHER_LOADER if i in (30, 60) else {} for i in range(100))
    assert np.flatnonzero(phases_of(rows)["validation"]).tolist() == [30, 60]


@pytest.mark.parametrize(
    ("each", "forward_ms"),
    [
        (lambda i: BURST if i % 16 == 0 else {}, 23),  # rollouts in train mode
        (lambda i: TEACHER, 5),
        (lambda i: TEACHER if i >= 20 else {}, 5),
        (lambda i: IN_EVAL_MODE if i % 3 else {}, None),
    ],
)
def test_what_runs_without_gradients_in_most_steps_or_in_train_mode_stays_forward(each, forward_ms):
    rows = steps(each(i) for i in range(96))
    phases = phases_of(rows)
    assert int(phases["validation"].sum()) == 0
    assert forward_ms in (None, phases["forward"][80] // MS)


def test_validation_beside_a_teacher_takes_only_its_own_part():
    both = {"nograd_ns": 22 * MS, "bursts": 2, "bursts_eval_mode": 2, "after_nograd_ns": 3 * MS, "burst_gap_ns": 3 * MS}
    phases = phases_of(steps(TEACHER | both if i % 25 == 24 else TEACHER for i in range(100)))
    assert np.flatnonzero(phases["validation"]).tolist() == [24, 49, 74, 99]
    assert phases["validation"][24] == 23 * MS
    assert phases["forward"].tolist() == [5 * MS] * 100


def test_validation_never_takes_more_than_there_is():
    burst = {"nograd_ns": MS, "burst_input_ns": 50 * MS, "bursts_other_loader": 1}
    phases = phases_of(steps(burst if i == 20 else {} for i in range(40)))
    assert (phases["input_wait"][20], phases["validation"][20]) == (0, 2 * MS)


def test_validation_inside_blocks_is_found():
    rows = steps(IN_EVAL_MODE if i % 20 == 19 else {} for i in range(40))
    rows.step(rows_merged=100, **{k: v * 5 for k, v in IN_EVAL_MODE.items()})
    assert phases_of(rows)["validation"][-1] == 125 * MS


@pytest.mark.parametrize(
    ("burst", "in_gaps"), [(OF_OTHER_LOADER | {"after_nograd_ns": 4 * MS}, {"after_nograd_ns": 0.3 * MS}), (BURST, {})]
)
def test_validation_is_taken_out_of_the_gaps_that_are_longer_for_it(burst, in_gaps):
    rows = steps({"other_ns": 2 * MS, **(burst if i % 10 == 9 else {})} for i in range(100))
    found = build_steps(rows.array(), closed=True)
    assert validation_in_gaps(find_validation(found), found.weight, np.ones(100, dtype=np.bool_)) == in_gaps


@pytest.mark.parametrize(
    ("every", "burst"),
    [
        (8, lambda i: IN_EVAL_MODE | {"bursts_other_loader": int(i % 16 == 7)}),  # only some show data of their own
        (20, lambda i: TEACHER | {"bursts": 2, "bursts_eval_mode": 2}),  # a teacher is not counted
    ],
)
def test_validations_are_counted_once(every, burst):
    other = TEACHER if every == 20 else {}
    rows = steps(burst(i) if i % every == every - 1 else other for i in range(160))
    passes = find_validation(build_steps(rows.array(), closed=True)).passes
    assert passes.tolist() == [int(i % every == every - 1) for i in range(160)]


@pytest.mark.parametrize(("every", "more", "told"), [(1, {}, True), (10, {}, False), (1, OF_OTHER_LOADER, False)])
def test_a_second_loader_is_trained_on_where_most_steps_take_of_it_and_validate_nothing(every, more, told):
    second = {"batches": 2, "micro_batches": 1, **more}
    found = build_steps(steps(second if i % every == 0 else {} for i in range(100)).array(), closed=True)
    assert trains_on_others(found, find_validation(found)) is told
