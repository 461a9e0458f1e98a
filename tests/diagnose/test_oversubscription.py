from dataclasses import replace

import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Severity, Skipped
from hotloop.judge.diagnose.rules.oversubscription import oversubscription

from .build_analysis import Told, check, find, make_analysis, make_forecast


@pytest.mark.parametrize(
    ("evidence", "severity"),
    [
        ({"present_ns": 18_000_000, "with_as_many_as_cores_ns": 7_000_000, "rounds": 5}, Severity.HIGH),
        ({"present_ns": 18_000_000, "with_as_many_as_cores_ns": 7_000_000, "rounds": 1}, Severity.INFO),
        ({"present_ns": 18_000_000, "with_as_many_as_cores_ns": 16_000_000, "rounds": 5}, Severity.INFO),
        ({"present_ns": 3_000_000, "with_as_many_as_cores_ns": 1_000_000, "rounds": 5}, Severity.INFO),
    ],
)
def test_settings_that_took_turns_and_clearly_differ_prove_half_the_gain(
    evidence: dict[str, int], severity: Severity
) -> None:
    probe = replace(make_forecast("thread-count", 0.0, 0.6, 0.8, torch_threads=2), evidence=evidence)
    one = find(oversubscription, make_analysis(torch_threads=16, cores=2, forecasts={"thread-count": probe}))
    assert one.severity is severity


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(ranks=2, torch_threads=4, cores=4),
            {"fix.settings": {"torch_threads": 2}},
            id="ranks_that_each_take_all_cores_oversubscribe_them",
        ),
        pytest.param(
            make_analysis(torch_threads=64, cores=2),
            {"severity": Severity.LOW, "saving.basis": Basis.RULE_OF_THUMB},
            id="without_a_probe_it_is_at_most_low",
        ),
        pytest.param(
            make_analysis(
                torch_threads=16,
                cores=2,
                forecasts={"thread-count": make_forecast("thread-count", 0.3, 0.4, 0.5, torch_threads=2)},
            ),
            {"severity": Severity.HIGH},
            id="a_measured_gain_earns_its_severity",
        ),
        pytest.param(make_analysis(torch_threads=4, cores=4), None, id="as_many_threads_as_cores_are_right"),
        pytest.param(
            make_analysis(accelerator=True, torch_threads=64, cores=8),
            {"severity": Severity.INFO},
            id="an_accelerator_hardly_needs_compute_threads",
        ),
        pytest.param(make_analysis(cores=None), Skipped, id="unknown_cores_cannot_be_judged"),
        pytest.param(
            make_analysis(
                torch_threads=16,
                cores=2,
                forecasts={"thread-count": make_forecast("thread-count", 0.0, 0.0, 0.01, torch_threads=2)},
            ),
            None,
            id="threads_that_were_measured_to_do_no_harm_are_nothing",
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(oversubscription, analysis, told)
