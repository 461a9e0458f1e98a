import numpy as np

from hotloop.analyze.partition import find_validation, split_phases, trains_on_others, validation_in_gaps
from hotloop.analyze.segments import IntColumn, build_steps

from .synthetic import MS, Rows

BURST = {
    "nograd_ns": 20 * MS,
    "iterator_ns": 2 * MS,
    "after_nograd_ns": 3 * MS,
    "burst_input_ns": 2 * MS,
    "burst_gap_ns": 3 * MS,
    "bursts": 1,
}
TEACHER = {"nograd_ns": 2 * MS, "bursts": 1, "bursts_eval_mode": 1}


def phases_of(rows: Rows) -> dict[str, IntColumn]:
    steps = build_steps(rows.array(), closed=True)
    return split_phases(steps, find_validation(steps))


def test_eval_bursts_at_every_fiftieth_step_are_validation():
    rows = Rows()
    for i in range(200):
        rows.step(**(BURST | {"bursts_eval_mode": 1} if i % 50 == 49 else {}))
    phases = phases_of(rows)
    assert phases["validation"][49] == 25 * MS
    assert int(phases["validation"].sum()) == 4 * 25 * MS
    assert phases["forward"].tolist() == [3 * MS] * 200
    assert phases["input_wait"].tolist() == [1 * MS] * 200


def test_bursts_with_another_loader_are_validation_in_train_mode_too():
    rows = Rows()
    for i in range(100):
        rows.step(**(BURST | {"bursts_other_loader": 1} if i in (30, 60) else {}))
    assert np.flatnonzero(phases_of(rows)["validation"]).tolist() == [30, 60]


def test_rollouts_in_train_mode_every_sixteen_steps_stay_forward():
    rows = Rows()
    for i in range(160):
        rows.step(**(BURST if i % 16 == 0 else {}))
    phases = phases_of(rows)
    assert int(phases["validation"].sum()) == 0
    assert phases["forward"][16] == 23 * MS


def test_a_teacher_in_every_step_stays_forward():
    rows = Rows()
    for _ in range(100):
        rows.step(**TEACHER)
    phases = phases_of(rows)
    assert int(phases["validation"].sum()) == 0
    assert phases["forward"].tolist() == [5 * MS] * 100


def test_a_teacher_in_nearly_every_step_stays_forward():
    rows = Rows()
    for i in range(100):
        rows.step(**(TEACHER if i >= 20 else {}))
    assert int(phases_of(rows)["validation"].sum()) == 0


def test_validation_beside_a_teacher_takes_only_its_own_part():
    rows = Rows()
    for i in range(100):
        extra = {
            "nograd_ns": 22 * MS,
            "bursts": 2,
            "bursts_eval_mode": 2,
            "after_nograd_ns": 3 * MS,
            "burst_gap_ns": 3 * MS,
        }
        rows.step(**(TEACHER | extra if i % 25 == 24 else TEACHER))
    phases = phases_of(rows)
    assert np.flatnonzero(phases["validation"]).tolist() == [24, 49, 74, 99]
    assert phases["validation"][24] == 23 * MS
    assert phases["forward"].tolist() == [5 * MS] * 100


def test_eval_bursts_in_most_steps_are_no_validation():
    rows = Rows()
    for i in range(90):
        rows.step(**(BURST | {"bursts_eval_mode": 1} if i % 3 else {}))
    assert int(phases_of(rows)["validation"].sum()) == 0


def test_validation_never_takes_more_than_there_is():
    rows = Rows()
    for i in range(40):
        rows.step(**({"nograd_ns": MS, "burst_input_ns": 50 * MS, "bursts_other_loader": 1} if i == 20 else {}))
    phases = phases_of(rows)
    assert phases["input_wait"][20] == 0
    assert phases["validation"][20] == 2 * MS


def test_validation_inside_blocks_is_found():
    rows = Rows()
    for i in range(40):
        rows.step(**(BURST | {"bursts_eval_mode": 1} if i % 20 == 19 else {}))
    rows.step(rows_merged=100, **{k: v * 5 for k, v in BURST.items()}, bursts_eval_mode=5)
    assert phases_of(rows)["validation"][-1] == 125 * MS


def test_validation_is_taken_out_of_the_gaps_that_are_longer_for_it():
    rows = Rows()
    for i in range(100):
        burst = BURST | {"bursts_other_loader": 1, "after_nograd_ns": 4 * MS, "burst_gap_ns": 3 * MS}
        rows.step(other_ns=2 * MS, **(burst if i % 10 == 9 else {}))
    steps = build_steps(rows.array(), closed=True)
    found = validation_in_gaps(find_validation(steps), steps.weight, np.ones(100, dtype=np.bool_))
    assert found == {"after_nograd_ns": 0.3 * MS}


def test_bursts_of_rollouts_are_no_validation_in_any_gap():
    rows = Rows()
    for i in range(160):
        rows.step(**(BURST if i % 16 == 0 else {}))
    steps = build_steps(rows.array(), closed=True)
    assert validation_in_gaps(find_validation(steps), steps.weight, np.ones(160, dtype=np.bool_)) == {}


def test_validations_are_counted_once_though_only_some_of_them_show_data_of_their_own():
    rows = Rows()
    for i in range(160):
        seen = {"bursts_eval_mode": 1, "bursts_other_loader": int(i % 16 == 7)}
        rows.step(**(BURST | seen if i % 8 == 7 else {}))
    validation = find_validation(build_steps(rows.array(), closed=True))
    assert np.flatnonzero(validation.passes).tolist() == list(range(7, 160, 8))


def test_a_teacher_in_eval_mode_is_not_counted_with_the_validations_beside_it():
    rows = Rows()
    for i in range(100):
        rows.step(**(TEACHER | ({"bursts": 2, "bursts_eval_mode": 2} if i % 20 == 19 else {})))
    validation = find_validation(build_steps(rows.array(), closed=True))
    assert validation.passes.tolist() == [int(i % 20 == 19) for i in range(100)]


def test_a_second_loader_is_trained_on_where_most_steps_take_of_it_and_validate_nothing():
    def found(every: int, **more: int) -> bool:
        rows = Rows()
        for i in range(100):
            rows.step(batches=2 if i % every == 0 else 1, micro_batches=1, **(more if i % every == 0 else {}))
        steps = build_steps(rows.array(), closed=True)
        return trains_on_others(steps, find_validation(steps))

    assert found(every=1)
    assert not found(every=10)
    assert not found(every=1, **(BURST | {"bursts_other_loader": 1}))
