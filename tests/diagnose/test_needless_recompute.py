import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Severity, Skipped, Where
from hotloop.judge.diagnose.rules.needless_recompute import judge_needless_recompute

from .build_analysis import Told, check, make_analysis

PLACE = Where(file="model.py", line=20, function="forward")
GIB = 1 << 30


def test_the_ranks_of_a_host_share_its_memory() -> None:
    alone = make_analysis(checkpointing=True, fields={"recompute_ns": 5e6}, memory_peak_bytes=3 * GIB)
    shared = make_analysis(
        ranks=8, checkpointing=True, fields={"recompute_ns": 5e6}, memory_peak_bytes=3 * GIB, local_world_size=8
    )
    assert isinstance(judge_needless_recompute.judge(alone), Finding)
    assert judge_needless_recompute.judge(shared) is None


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(checkpointing=True, checkpointing_where=PLACE, fields={"recompute_ns": 5e6}),
            {"cost_ratio": pytest.approx(0.25), "severity": Severity.HIGH, "where": (PLACE,)},
            id="recomputing_with_memory_to_spare_costs_its_time",
        ),
        pytest.param(
            make_analysis(checkpointing=True),
            {"saving.basis": Basis.RULE_OF_THUMB},
            id="unmeasured_recomputing_is_a_rule_of_thumb",
        ),
        pytest.param(
            make_analysis(checkpointing=True, fields={"recompute_ns": 5e6}, memory_peak_bytes=10 * GIB),
            None,
            id="memory_more_than_half_full_is_no_finding",
        ),
        pytest.param(
            make_analysis(checkpointing=True, fields={"recompute_ns": 5e6}, memory_peak_bytes=7 * GIB),
            None,
            id="activations_that_would_not_fit_are_no_finding",
        ),
        pytest.param(make_analysis(checkpointing=False), None, id="without_checkpointing_it_is_no_finding"),
        pytest.param(
            make_analysis(checkpointing=True, memory_peak_bytes=None), Skipped, id="unknown_memory_is_skipped"
        ),
        pytest.param(
            make_analysis(checkpointing=True, step_noise_ratio=0.05, fields={"recompute_ns": 1.2e6}),
            {"cost_ratio": pytest.approx(0.06)},
            id="recomputing_that_was_clocked_is_found_in_an_uneven_run",
        ),
        pytest.param(
            make_analysis(checkpointing=True, columns={"recompute_ns": [0] * 99 + [40_000_000]}),
            None,
            id="one_recomputing_in_a_hundred_steps_is_nothing",
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(judge_needless_recompute, analysis, told)
