"""The five parts of a run."""

import pytest

from hotloop.core.analysis import RunStart
from hotloop.core.phases import Excluded
from hotloop.judge.diagnose.verdict import divide_run

from .build_analysis import make_analysis

S = 1_000_000_000


def test_a_run_is_start_steps_validation_checkpoints_and_end() -> None:
    """4 s before the first event; 2 s of warm-up, of which 1 s beyond a usual step; 10 s of steady steps; 4 s after."""
    left_out = Excluded(
        count=3,
        total_ns=6 * S,
        ratio=6 / 16,
        warmup_count=3,
        warmup_ns=2 * S,
        later_count=0,
        later_ns=0,
        tail_ns=4 * S,
        tail_phase_ns={"validation": 1 * S, "checkpoint": 2 * S, "other": 1 * S},
        startup_ns=None,
        phase_ns={"validation": 0, "checkpoint": 0},
        compile_ns=0,
    )
    start = RunStart(before_ns=4 * S, first_step_ns=1 * S)
    parts = divide_run(make_analysis(validation=0.2, excluded=left_out, start=start).lead)
    assert parts is not None
    assert parts.start_ratio == pytest.approx(5 / 20)
    assert parts.validation_ratio == pytest.approx(3 / 20)  # a fifth of the steady steps, and one at the end
    assert parts.checkpoint_ratio == pytest.approx(2 / 20)
    assert parts.end_ratio == pytest.approx(1 / 20)
    assert parts.training_ratio == pytest.approx(9 / 20)


def test_a_run_whose_start_was_not_seen_is_not_divided() -> None:
    assert divide_run(make_analysis(start=None).lead) is None
