"""Events in, rows and facts out: what a training did is found out from what its hooks noted."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hotloop.agent.replay.engine import Engine
from hotloop.core import events as ev
from hotloop.core.recording import FIELD, STEP_FIELDS, TIME_FIELDS

MODEL, LOSS, OPTIMIZER, LOADER, ITERATOR = 11, 12, 21, 31, 32
TRAIN = ev.GRAD | ev.TRAINING
INPUT_1 = ev.HAS_INPUT | ev.ALL_TENSORS


class Training:
    """Events with a clock of 1 us each, unless told otherwise."""

    def __init__(self) -> None:
        self.rows: list[dict[str, int]] = []
        self.facts: list[dict[str, Any]] = []
        self.engine = Engine(0, self._keep, self.facts.append)
        self.now_ns = 0

    def _keep(self, row: Any) -> None:
        self.rows.append(dict(zip(STEP_FIELDS, row, strict=True)))

    def __call__(self, code: int, *arguments: int, spend_ns: int = 1_000) -> None:
        self.now_ns += spend_ns
        self.engine.feed(code, self.now_ns, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])

    def forward(self, module: int = MODEL, flags: int = TRAIN | ev.LEARNS, first: int = 0, every: int = 0) -> None:
        self(ev.FORWARD_IN, module, flags, first, every)
        self(ev.FORWARD_OUT, module, spend_ns=20_000)

    def backward(self) -> None:
        self(ev.BACKWARD_IN)
        self(ev.BACKWARD_OUT, spend_ns=30_000)

    def step(self, optimizer: int = OPTIMIZER) -> None:
        self(ev.STEP_IN, optimizer)
        self(ev.STEP_OUT, optimizer, spend_ns=5_000)

    def batch(self, iterator: int = ITERATOR, samples: int = 8) -> None:
        self(ev.BATCH_IN, iterator)
        self(ev.BATCH_OUT, iterator, ev.HAS_INPUT, 0, ev.sizes(samples, 4), spend_ns=10_000)

    def iterate(self, loader: int = LOADER, iterator: int = ITERATOR) -> None:
        self(ev.ITERATOR_IN, loader)
        self(ev.ITERATOR_OUT, loader, iterator)

    def whole_step(self) -> None:
        self.forward()
        self.backward()
        self.step()

    @property
    def last(self) -> dict[str, int]:
        return self.rows[-1]


@pytest.fixture
def training() -> Training:
    made = Training()
    made.whole_step()
    return made


def conserved(row: dict[str, int]) -> bool:
    return sum(row[name] for name in TIME_FIELDS) == row["end_ns"] - row["start_ns"]


def test_batches_of_the_loader_that_feeds_backward_are_samples(training: Training) -> None:
    training.iterate()
    for _ in range(2):
        training.batch(samples=8)
        training.whole_step()
    row = training.last
    assert (row["batches"], row["micro_batches"], row["samples"], row["input_wait_ns"]) == (1, 1, 8, 10_000)


def test_a_validation_on_another_loader_is_a_burst(training: Training) -> None:
    training.iterate()
    training.batch()
    training.whole_step()
    training.iterate(41, 42)
    for _ in range(3):
        training.batch(42)
        training.forward(flags=ev.LEARNS)
    training(ev.BATCH_IN, 42)
    training(ev.BATCH_END, 42)
    training.batch()
    training.whole_step()
    row = training.last
    assert (row["bursts"], row["bursts_other_loader"], row["bursts_eval_mode"], row["nograd_forwards"]) == (1, 1, 1, 3)
    assert row["burst_input_ns"] >= 20_000
    assert row["samples"] == 8
    assert conserved(row)


def test_a_peek_into_the_loader_is_taken_back(training: Training) -> None:
    training.iterate()
    training.batch()
    training.iterate()
    training.batch()
    training.whole_step()
    assert (training.last["samples"], training.last["batches"]) == (8, 2)


def test_a_step_that_raised_is_over_when_the_loop_goes_on(training: Training) -> None:
    training.iterate()
    training(ev.STEP_IN, OPTIMIZER)
    training.batch()
    training.whole_step()
    assert training.engine.recorder.stack == [FIELD["other_ns"]]
    assert training.last["optimizer_index"] == 0


def test_another_thread_that_trains_begins_anew(training: Training) -> None:
    training(ev.OWNER)
    training.whole_step()
    assert [row["index"] for row in training.rows[-2:]] == [0, 1]  # the first backward closes a row of its own


def test_facts_are_told_with_the_lines_of_their_objects(training: Training) -> None:
    training.engine.tell({"kind": "place", "of": LOADER, "where": ["train.py", 7, "main"]})
    training.engine.tell({"kind": "loader", "key": LOADER, "num_workers": 0, "first_batch_size": 8})
    training.engine.tell({"kind": "model", "key": MODEL, "class": "Net", "parameters": 3})
    training.whole_step()
    training.whole_step()
    told = {fact["kind"]: fact for fact in training.facts}
    assert told["loader"]["where"] == ["train.py", 7, "main"]
    assert told["loader"]["id"] == 0
    assert "first_batch_size" not in told["loader"]


def test_events_of_no_sense_do_no_harm(training: Training) -> None:
    for code in range(256):
        training(code, 5, 6, 7, 8, 9, 10)
    training.engine.tell({"kind": 7})
    training.engine.tell({})
    training.whole_step()
    training.whole_step()
    assert conserved(training.last)


def test_skipped_forwards_are_counted_and_their_time_is_theirs(training: Training) -> None:
    training.forward(flags=ev.TRAINING)
    training(ev.SKIPPED, 15, spend_ns=300_000)
    training.forward(flags=ev.TRAINING)
    training.whole_step()
    assert training.last["nograd_forwards"] == 17
    assert training.last["nograd_ns"] > 200_000
    assert conserved(training.last)


@pytest.mark.parametrize("seed", range(20))
def test_events_in_any_order_conserve_time(seed: int) -> None:
    draw, training = random.Random(seed), Training()
    phases = [FIELD["communication_ns"], FIELD["h2d_ns"], FIELD["checkpoint_ns"]]
    codes = [code for code in range(1, 40) if code not in (ev.OWNER, ev.LEFT_OUT, ev.FLAG)]
    for _ in range(300):
        code = draw.choice(codes)
        first = draw.choice(phases) if code in (ev.PHASE_IN, ev.PHASE_OUT) else draw.randrange(4)
        arguments = [first, draw.randrange(1 << 14), *(draw.randrange(4) for _ in range(4))]
        training(code, *arguments, spend_ns=draw.randrange(2_000))
        if draw.random() < 0.3:
            training.engine.resume()
            training.whole_step()
    training.engine.finish(training.now_ns)
    assert len(training.rows) > 50
    assert all(conserved(row) for row in training.rows)
    assert min(row[name] for row in training.rows for name in TIME_FIELDS) >= 0


def test_time_that_is_left_out_is_of_no_row(training: Training) -> None:
    training(ev.LEFT_OUT, spend_ns=500_000)
    training.whole_step()
    assert training.last["end_ns"] - training.last["start_ns"] < 100_000
    assert conserved(training.last)


def test_a_garbage_collection_counts_with_its_line(training: Training) -> None:
    training.engine.tell({"kind": "collect_place", "where": ["train.py", 7, "main"]})
    training(ev.COLLECTED, 700, 2)
    training.whole_step()
    assert (training.last["gc_ns"], training.last["gc_count"]) == (700, 1)
    (told,) = [fact for fact in training.engine.totals({}) if fact["kind"] == "gc"]
    assert (told["by_generation"], told["explicit_where"]) == ([0, 0, 1], ["train.py", 7, "main"])


def test_a_compilation_counts_while_it_lasts(training: Training) -> None:
    training(ev.COMPILE_IN)
    training(ev.COMPILE_OUT, spend_ns=40_000)
    training(ev.COMPILE_OUT)
    training.whole_step()
    assert (training.last["compile_ns"], training.last["compiles"]) == (40_000, 1)


def test_a_compiled_function_outside_modules_is_a_forward(training: Training) -> None:
    training(ev.GRAPH, 9_000, 1, spend_ns=10_000)
    training.backward()
    training.step()
    assert (training.last["forwards"], training.last["forward_ns"]) == (1, 9_000)
    assert conserved(training.last)


def test_what_an_optimizer_holds_is_told_once_all_have_said_it(training: Training) -> None:
    training.step(77)
    held = {"parameter_bytes": 40, "gradient_bytes": 40, "optimizer_state_bytes": 84}
    for key in (OPTIMIZER, 77):
        assert not [fact for fact in training.facts if fact["kind"] == "held"]
        training.engine.tell({"kind": "held", "key": key, **held})
    (told,) = [fact for fact in training.facts if fact["kind"] == "held"]
    assert told["optimizer_state_bytes"] == 168


@pytest.mark.parametrize(
    ("how", "ended"), [(ev.HOW_COMPLETED, ["completed"]), (ev.HOW_EXCEPTION, ["exception"]), (None, [])]
)
def test_how_it_ended_is_what_it_said_itself(training: Training, how: int | None, ended: list[str]) -> None:
    if how is not None:
        training(ev.END, how)
    training.engine.finish(training.now_ns)
    assert [fact["ended"] for fact in training.facts if fact["kind"] == "end"] == ended
