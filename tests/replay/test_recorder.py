"""The phase stack with a fake clock: exact times, exact rows, whatever is left open."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from hotloop.agent.replay.recorder import (
    AFTER_INPUT,
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    INPUT,
    ITERATOR,
    MAX_CLOSES,
    NOGRAD,
    OPTIMIZER,
    Recorder,
)
from hotloop.core.recording import (
    CLOSED_BY_BACKWARD,
    CLOSED_BY_OPTIMIZER,
    CLOSED_BY_SCALER_SKIP,
    FIELD,
    OTHER_WAIT_FIELD,
    STEP_FIELDS,
    TIME_FIELDS,
)


@dataclass
class FakeClock:
    """Nanoseconds that pass only when told."""

    now_ns: int = 1_000

    def __call__(self) -> int:
        return self.now_ns

    def spend(self, duration_ns: int) -> None:
        self.now_ns += duration_ns


@dataclass
class Kept:
    rows: list[dict[str, int]] = field(default_factory=list)

    def __call__(self, row: list[int]) -> None:
        self.rows.append(dict(zip(STEP_FIELDS, row, strict=True)))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def recorder(clock: FakeClock, kept: Kept) -> Recorder:
    recorder = Recorder(clock)
    recorder.emit = kept
    return recorder


def phase(recorder: Recorder, clock: FakeClock, field_index: int, duration_ns: int) -> None:
    recorder.enter(field_index)
    clock.spend(duration_ns)
    recorder.leave()


def step(recorder: Recorder, clock: FakeClock, index: int = 0) -> None:
    phase(recorder, clock, INPUT, 10)
    clock.spend(1)
    phase(recorder, clock, FORWARD, 20)
    clock.spend(2)
    phase(recorder, clock, BACKWARD, 30)
    recorder.backward_ended(False)
    clock.spend(3)
    depth = len(recorder.stack)
    recorder.optimizer_began()
    clock.spend(5)
    recorder.optimizer_ended(depth, index)


def conserved(row: dict[str, int]) -> bool:
    return sum(row[name] for name in TIME_FIELDS) == row["end_ns"] - row["start_ns"]


def test_a_step_holds_every_nanosecond(recorder: Recorder, clock: FakeClock, kept: Kept) -> None:
    step(recorder, clock)
    step(recorder, clock)
    first, second = kept.rows[-2:]
    assert second["input_wait_ns"] == 10
    assert second["after_input_ns"] == 1
    assert second["forward_ns"] == 20
    assert second["after_forward_ns"] == 2
    assert second["backward_ns"] == 30
    assert second["after_backward_ns"] == 3
    assert second["optimizer_ns"] == 5
    assert second["end_ns"] - second["start_ns"] == 71
    assert conserved(first)
    assert conserved(second)
    assert second["start_ns"] == first["end_ns"]


def test_backwards_close_rows_until_an_optimizer_steps(recorder: Recorder, clock: FakeClock, kept: Kept) -> None:
    for _ in range(3):
        phase(recorder, clock, BACKWARD, 4)
        recorder.backward_ended(False)
    step(recorder, clock)
    step(recorder, clock)
    assert [row["closed_by"] for row in kept.rows] == [CLOSED_BY_BACKWARD] * 4 + [CLOSED_BY_OPTIMIZER] * 2


def test_an_optimizer_inside_backward_closes_after_it(recorder: Recorder, clock: FakeClock, kept: Kept) -> None:
    recorder.enter(BACKWARD)
    for index in range(300):
        recorder.optimizer_began()
        clock.spend(1)
        recorder.optimizer_ended(2, index)
    recorder.leave()
    recorder.backward_ended(False)
    (row,) = kept.rows
    assert (row["optimizer_ns"], row["optimizer_index"], row["closed_by"]) == (300, 299, CLOSED_BY_OPTIMIZER)


def test_one_optimizer_per_parameter_closes_no_more_rows_than_the_limit(
    recorder: Recorder, clock: FakeClock, kept: Kept
) -> None:
    for _ in range(2):
        phase(recorder, clock, BACKWARD, 30)
        recorder.backward_ended(False)
        for index in range(3 * MAX_CLOSES):
            recorder.optimizer_began()
            clock.spend(1)
            recorder.optimizer_ended(1, index)
    recorder.close_tail()
    rows = [row for row in kept.rows if row["closed_by"] == CLOSED_BY_OPTIMIZER]
    assert [row["optimizer_index"] for row in rows] == [*range(MAX_CLOSES)] * 2
    assert rows[MAX_CLOSES]["optimizer_ns"] == 1 + 2 * MAX_CLOSES  # with those that closed none
    assert sum(row["optimizer_ns"] for row in kept.rows) == 6 * MAX_CLOSES


def test_the_scaler_around_a_step(recorder: Recorder, clock: FakeClock, kept: Kept) -> None:
    recorder.enter(FORWARD)
    recorder.leave()
    recorder.scaler_began()
    clock.spend(7)
    assert not recorder.scaler_ended(1)
    recorder.step_skipped(0)
    skipped = kept.rows.pop()
    assert (skipped["closed_by"], skipped["scaler_ns"], skipped["optimizer_ns"]) == (CLOSED_BY_SCALER_SKIP, 7, 7)
    recorder.scaler_began()
    clock.spend(7)
    recorder.optimizer_began()
    clock.spend(11)
    recorder.optimizer_ended(2, 0)
    clock.spend(1)
    assert recorder.scaler_ended(1)
    (row,) = kept.rows
    assert (row["closed_by"], row["scaler_ns"], row["optimizer_ns"]) == (CLOSED_BY_OPTIMIZER, 7, 18)
    assert recorder.stack == [FIELD["other_ns"]]


def test_any_order_of_events_conserves_time(recorder: Recorder, clock: FakeClock, kept: Kept) -> None:
    draw = random.Random(7)
    for _ in range(5_000):
        clock.spend(draw.randrange(50))
        choice = draw.randrange(6)
        if choice < 3 and len(recorder.stack) < 8:
            recorder.enter(draw.choice([INPUT, FORWARD, NOGRAD, BACKWARD, OPTIMIZER, COMMUNICATION]))
        elif choice < 5:
            recorder.leave()
        else:
            recorder.close(CLOSED_BY_OPTIMIZER, 0)
    assert len(kept.rows) > 500
    assert all(conserved(row) for row in kept.rows)


def test_a_wait_for_another_loader_is_a_wait_in_rows_and_has_a_name_of_its_own_in_samples(
    recorder: Recorder, clock: FakeClock, kept: Kept
) -> None:
    step(recorder, clock)
    for wait in (ITERATOR, INPUT):
        recorder.enter(wait)
        recorder.other_wait = True
        assert STEP_FIELDS[recorder.sampled_field] == OTHER_WAIT_FIELD
        clock.spend(7)
        recorder.leave()
        assert recorder.sampled_field == AFTER_INPUT
        recorder.other_wait = False
    step(recorder, clock)
    row = kept.rows[-1]
    assert (row["iterator_ns"], row["input_wait_ns"]) == (7, 7 + 10)  # the step waits for 10 itself


def test_cpu_time_is_that_since_it_was_read_before(recorder: Recorder, clock: FakeClock, kept: Kept) -> None:
    for cpu_ns in (100, 0, 340):
        if cpu_ns:
            recorder.cpu_read(cpu_ns)
        step(recorder, clock)
    assert [row["cpu_ns"] for row in kept.rows if row["closed_by"] == CLOSED_BY_OPTIMIZER] == [0, 0, 240]


def test_steps_that_were_only_counted_are_like_those_before_them(
    recorder: Recorder, clock: FakeClock, kept: Kept
) -> None:
    for _ in range(40):
        step(recorder, clock)
    before = kept.rows[-1]
    clock.spend(710)
    recorder.close_rested(10)
    step(recorder, clock)
    block, after = kept.rows[-2:]
    assert (block["index"], block["rows_merged"], after["index"]) == (before["index"] + 1, 10, before["index"] + 11)
    assert (block["forward_ns"], block["input_wait_ns"], block["backwards"]) == (200, 100, 10)
    assert conserved(block)
    assert (block["start_ns"], block["end_ns"]) == (before["end_ns"], after["start_ns"])


def test_a_training_that_ends_as_a_row_closes_tells_that_row_once(
    recorder: Recorder, clock: FakeClock, kept: Kept
) -> None:
    """A trial stops the training there. Before: the tail told the last step again, as what followed it."""

    def stop(_row: object) -> None:
        raise SystemExit

    def step() -> None:
        recorder.enter(OPTIMIZER)
        clock.spend(70)
        recorder.optimizer_ended(1, 0)

    step()
    recorder.on_row = stop
    with pytest.raises(SystemExit):
        step()
    recorder.on_row = None
    clock.spend(5)
    recorder.close_tail()
    assert [row["optimizer_ns"] for row in kept.rows] == [70, 70, 0]
    assert [row["other_ns"] for row in kept.rows] == [0, 0, 5]
    assert kept.rows[2]["start_ns"] == kept.rows[1]["end_ns"]
