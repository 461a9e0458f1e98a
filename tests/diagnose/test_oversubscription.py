from dataclasses import replace

import pytest

from hotloop.core.findings import Basis, Severity, Skipped
from hotloop.diagnose.rules.oversubscription import oversubscription

from .build_analysis import find, fix_of, make_analysis, make_forecast, saving_of


def test_ranks_that_each_take_all_cores_oversubscribe_them() -> None:
    one = find(oversubscription, make_analysis(ranks=2, torch_threads=4, cores=4))
    assert fix_of(one).settings == {"torch_threads": 2}


def test_without_a_probe_it_is_at_most_low() -> None:
    one = find(oversubscription, make_analysis(torch_threads=64, cores=2))
    assert one.severity is Severity.LOW
    assert saving_of(one).basis is Basis.RULE_OF_THUMB


def test_a_measured_gain_earns_its_severity() -> None:
    probe = {"thread-count": make_forecast("thread-count", 0.3, 0.4, 0.5, torch_threads=2)}
    one = find(oversubscription, make_analysis(torch_threads=16, cores=2, forecasts=probe))
    assert one.severity is Severity.HIGH


def test_as_many_threads_as_cores_are_right() -> None:
    assert oversubscription.judge(make_analysis(torch_threads=4, cores=4)) is None


def test_an_accelerator_hardly_needs_compute_threads() -> None:
    one = find(oversubscription, make_analysis(accelerator=True, torch_threads=64, cores=8))
    assert one.severity is Severity.INFO


def test_unknown_cores_cannot_be_judged() -> None:
    assert isinstance(oversubscription.judge(make_analysis(cores=None)), Skipped)


def test_threads_that_were_measured_to_do_no_harm_are_nothing() -> None:
    probe = {"thread-count": make_forecast("thread-count", 0.0, 0.0, 0.01, torch_threads=2)}
    assert oversubscription.judge(make_analysis(torch_threads=16, cores=2, forecasts=probe)) is None


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
