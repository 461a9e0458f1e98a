import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Severity, Skipped
from hotloop.judge.diagnose.rules.frequent_validation import frequent_validation

from .build_analysis import find, fix_of, make_analysis, saving_of


def validating(share_ratio: float, every: int = 10, **rank: object) -> Analysis:
    validations = [1 if i % every == 0 else 0 for i in range(100)]
    return make_analysis(validation=share_ratio, **({"columns": {"validations": validations}} | rank))


def test_validation_that_takes_a_third_is_a_fault_with_the_interval_that_would_do() -> None:
    one = find(frequent_validation, validating(1 / 3))
    assert one.severity is Severity.HIGH
    every = fix_of(one).settings["every"]
    assert isinstance(every, int)
    share_after = (1 / 3 / every) / (2 / 3 + 1 / 3 / every)
    assert share_after <= 0.03
    assert saving_of(one).mid_ratio == pytest.approx(1 / 3 * (1 - 1 / every))


def test_validation_is_judged_however_uneven_the_steps_are() -> None:
    """It is clocked by itself. Before: nothing, where other programs made the steps as uneven as it is long."""
    validations = [1 if i % 10 == 0 else 0 for i in range(100)]
    uneven = {"validations": validations, "forward_ns": [2_000_000 if i < 50 else 40_000_000 for i in range(100)]}
    assert find(frequent_validation, validating(0.2, columns=uneven, step_noise_ratio=0.3)).cost_ns


def test_a_validation_of_a_few_percent_is_healthy() -> None:
    assert frequent_validation.judge(validating(0.09)) is None


def test_just_above_the_floor_it_is_at_most_low() -> None:
    one = find(frequent_validation, validating(0.105))
    assert one.severity is Severity.LOW


def test_a_single_validation_says_nothing_of_its_frequency() -> None:
    one = frequent_validation.judge(validating(0.4, every=100))
    assert isinstance(one, Skipped)
    assert "40%" in one.reason


def test_a_teacher_beside_the_validation_does_not_blur_its_interval() -> None:
    rare = [1 if i % 10 == 0 else 0 for i in range(100)]
    analysis = make_analysis(validation=0.3, columns={"bursts": [1 + r for r in rare], "validations": rare})
    one = find(frequent_validation, analysis)
    assert one.evidence["steps_per_validation"] == 10.0


@pytest.mark.parametrize(
    ("peaks", "is_told"),
    [
        ({"training": 800 << 20, "validation": 2100 << 20}, True),
        ({"start": 2000 << 20, "training": 800 << 20, "validation": 2100 << 20}, False),
        ({"training": 800 << 20, "validation": 900 << 20}, False),
        ({}, False),
    ],
)
def test_a_peak_of_memory_that_is_made_in_validation_is_told(peaks: dict[str, int], is_told: bool) -> None:
    one = find(frequent_validation, validating(1 / 3, peaks_bytes=peaks))
    assert one.evidence["validation_peak_bytes"] == peaks.get("validation")
