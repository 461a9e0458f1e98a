"""What a usual step does is forecast; what comes now and then is kept apart."""

from dataclasses import replace

import pytest

from hotloop.core.analysis import RankAnalysis
from hotloop.evidence.analyze.measurement import step_times
from hotloop.evidence.analyze.trainings import Training, analyze_run
from tests.analyze.synthetic import MS, recording, steps


def training_with(rare_ms: int, every: int = 10, usual_ms: int = 0) -> Training:
    rows = steps({"other_ns": MS * (rare_ms if step % every == every - 1 else usual_ms)} for step in range(200))
    (training,) = analyze_run([recording(rows)])
    return training


def test_what_is_played_between_updates_stands_apart_from_a_usual_step():
    step = step_times(training_with(rare_ms=100))
    assert step.step_ns == pytest.approx(20 * MS, rel=0.02)
    assert step.apart_ns == pytest.approx(10 * MS, rel=0.05)
    assert step.other_ns == pytest.approx(0.0, abs=0.1 * MS)


def test_what_every_step_does_is_part_of_it():
    step = step_times(training_with(rare_ms=4, usual_ms=4))
    assert (step.apart_ns, step.other_ns) == (0.0, pytest.approx(4 * MS))


def test_work_of_most_steps_is_no_rare_work():
    step = step_times(training_with(rare_ms=0, every=4, usual_ms=4))
    assert step.apart_ns == 0.0
    assert step.other_ns == pytest.approx(3 * MS, rel=0.05)


def test_a_larger_batch_may_fill_most_of_the_memory_and_joins_no_more_than_the_micro_batches():
    rank = training_with(rare_ms=0).lead.rank
    small = replace(rank, memory_total_bytes=10 << 30, memory_peak_bytes=1 << 30)
    assert step_times(with_rank(small)).largest_factor == pytest.approx(8.0)
    assert step_times(with_rank(replace(small, local_world_size=4))).largest_factor == pytest.approx(2.0)
    accumulating = replace(small, mean={**small.mean, "micro_batches": 4.0})
    assert step_times(with_rank(accumulating)).largest_factor == pytest.approx(4.0)
    assert step_times(with_rank(replace(small, memory_peak_bytes=None))).largest_factor == 2.0


def with_rank(rank: RankAnalysis) -> Training:
    training = training_with(rare_ms=0)
    return replace(training, processes=(replace(training.processes[0], rank=rank),))
