from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hotloop.analyze.check import CheckLimits, judge
from hotloop.core.check import Check, CheckVerdict, Launch, Measure
from hotloop.core.noise import student_quantile
from hotloop.core.phases import PHASES

MS = 1e6


def launch(step_ms: float, *, name: str = "a", error_ms: float | None = 0.05, units: float | None = 16, **more: object):
    measures = {f"{phase}_ns": Measure(value=0.0, error=0.0, freedom=9) for phase in PHASES}
    error = None if error_ms is None else error_ms * MS
    measures["step_ns"] = measures["forward_ns"] = Measure(value=step_ms * MS, error=error, freedom=50)
    measures["samples_per_s"] = Measure(value=16e3 / step_ms)
    measures["memory_peak_bytes"] = Measure(value=float(more.pop("memory", 1e9)))  # type: ignore[arg-type]
    return Launch(
        name=name,
        measures=measures,
        steps_count=100,
        unit="sample",
        units_per_step=units,
        machine=dict(more),  # type: ignore[arg-type]
    )


def check(runs: list[Launch], baseline: list[Launch], limits: CheckLimits | None = None) -> Check:
    return judge(runs, baseline, limits or CheckLimits(), baseline_name="base", version="0")


def verdict_of(found: Check, name: str) -> CheckVerdict:
    (one,) = (one for one in found.judged if one.id == name)
    return one.verdict


QUIET = [launch(ms) for ms in (10.0, 10.1, 9.95, 10.05, 9.9)]


def test_a_slower_run_beyond_the_noise_between_launches_is_a_regression() -> None:
    found = check([launch(12.0)], QUIET)
    assert found.verdict is CheckVerdict.REGRESSION
    assert verdict_of(found, "step_ns") is CheckVerdict.REGRESSION
    assert verdict_of(found, "phase/forward") is CheckVerdict.REGRESSION
    assert verdict_of(found, "samples_per_s") is CheckVerdict.REGRESSION
    assert verdict_of(found, "phase/backward") is CheckVerdict.PASS
    assert verdict_of(found, "memory_peak_bytes") is CheckVerdict.PASS


def test_a_run_many_times_slower_is_told_as_a_multiple_and_not_in_percent() -> None:
    [step] = [one for one in check([launch(12_490)], [launch(100)]).judged if one.id == "step_ns"]
    assert "+124 times" in step.reason
    assert "12" not in step.reason.replace("124 times", "")


def test_an_equal_run_passes() -> None:
    assert check([launch(10.02)], QUIET).verdict is CheckVerdict.PASS


def test_noise_between_launches_leaves_a_difference_open() -> None:
    found = check([launch(25.0)], [launch(18.0), launch(30.0), launch(19.0)])
    assert found.verdict is CheckVerdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("step_ms", "verdict"), [(15.0, "inconclusive"), (10.2, "pass"), (8.0, "pass"), (25.0, "regression")]
)
def test_one_launch_a_side_says_little(step_ms: float, verdict: str) -> None:
    found = check([launch(step_ms)], [launch(10.0)])
    assert verdict_of(found, "step_ns").value == verdict
    assert "not known" in found.noise


def test_a_launch_against_itself_passes_whatever_its_noise() -> None:
    one = launch(20.0, error_ms=9.0)
    found = check([one], [one])
    assert found.verdict is CheckVerdict.PASS
    assert verdict_of(found, "step_ns") is CheckVerdict.PASS


def test_a_declared_noise_decides_where_launches_are_few() -> None:
    found = check([launch(13.0)], [launch(10.0)], CheckLimits(launch_noise_ratio=0.02))
    assert verdict_of(found, "step_ns") is CheckVerdict.REGRESSION
    found = check([launch(13.0)], [launch(10.0)], CheckLimits(launch_noise_ratio=0.2))
    assert verdict_of(found, "step_ns") is CheckVerdict.INCONCLUSIVE


def test_launches_that_agree_by_chance_are_no_proof_of_silence() -> None:
    loud = [launch(10.0, error_ms=1.0) for _ in range(3)]
    assert verdict_of(check([launch(11.0, error_ms=1.0)], loud), "step_ns") is CheckVerdict.INCONCLUSIVE


def test_steps_of_other_work_are_judged_by_the_unit() -> None:
    slow = launch(20.0, units=32)
    found = check([slow], QUIET)
    assert dict(found.skipped)["step_ns"].startswith("a step has 16 to 32 samples")
    assert [one.id for one in found.judged] == ["samples_per_s", "memory_peak_bytes"]
    assert verdict_of(found, "samples_per_s") is CheckVerdict.REGRESSION


def test_steps_of_other_tokens_are_judged_per_token_and_not_per_sample() -> None:
    """Half the tokens in half the time, with as many samples: nothing became faster."""

    def texts(step_ms: float, tokens: float) -> Launch:
        one = launch(step_ms, units=tokens)
        return replace(
            one, unit="token", measures={**one.measures, "tokens_per_s": Measure(value=tokens * 1e3 / step_ms)}
        )

    found = check([texts(10.0, 100)], [texts(20.0, 200)] * 3)
    (rate,) = (one for one in found.judged if one.id.endswith("_per_s"))
    assert (rate.id, rate.change_ratio) == ("tokens_per_s", 0.0)


def test_other_steps_of_a_drifting_run_do_not_compare_per_unit() -> None:
    slow = replace(launch(20.0, units=32), unit_drifts=True)
    found = check([slow], QUIET)
    assert verdict_of(found, "samples_per_s") is CheckVerdict.INCONCLUSIVE
    as_many = check([replace(launch(20.0), unit_drifts=True)], QUIET)
    assert verdict_of(as_many, "step_ns") is CheckVerdict.REGRESSION


def test_another_machine_is_never_a_regression() -> None:
    found = check([launch(30.0, cores=2)], [launch(ms, cores=8) for ms in (10.0, 10.1, 9.9)])
    assert found.verdict is CheckVerdict.INCONCLUSIVE
    assert "cores 8 -> 2" in found.warnings[0]


def test_of_a_mixed_baseline_the_launches_of_this_machine_count() -> None:
    mixed = [*(launch(ms, cores=8) for ms in (10.0, 10.1, 9.9, 10.05)), launch(30.0, cores=2)]
    found = check([launch(12.0, cores=8)], mixed)
    assert (found.verdict, found.baseline_count) == (CheckVerdict.REGRESSION, 4)
    assert found.warnings == ("1 of 5 baseline launches ran on another machine and are left out",)
    assert check([launch(10.0, cores=8)], mixed).verdict is CheckVerdict.PASS
    assert check([launch(10.0, cores=4)], mixed).verdict is CheckVerdict.INCONCLUSIVE


def test_memory_is_judged() -> None:
    found = check([launch(10.0, memory=1.2e9)], QUIET)
    assert found.verdict is CheckVerdict.REGRESSION
    assert verdict_of(found, "memory_peak_bytes") is CheckVerdict.REGRESSION


def test_budgets_are_about_the_launch() -> None:
    limits = CheckLimits(budgets={"step_ms": 9.0, "samples_per_s": 1000.0, "tokens_per_s": 5.0})
    found = check([launch(10.0)], [], limits)
    assert verdict_of(found, "budget/step_ms") is CheckVerdict.REGRESSION
    assert verdict_of(found, "budget/samples_per_s") is CheckVerdict.PASS
    assert verdict_of(found, "budget/tokens_per_s") is CheckVerdict.INCONCLUSIVE
    assert verdict_of(
        check([launch(10.0, error_ms=2)], [], CheckLimits(budgets={"step_ms": 9.5})), "budget/step_ms"
    ) is (CheckVerdict.INCONCLUSIVE)


@pytest.mark.parametrize(("freedom", "point"), [(1, 31.821), (2, 6.965), (3, 4.541), (7, 2.998), (60, 2.390)])
def test_quantiles_are_those_of_the_tables(freedom: int, point: float) -> None:
    assert student_quantile(0.99, freedom) == pytest.approx(point, abs=1e-3)


def test_equal_programs_are_seldom_called_a_regression() -> None:
    """A/A with a tolerance of 0 and a noise of 10 % between launches: the level promised, with room for luck."""
    draw = random.Random(7)
    wrong = 0
    for _ in range(600):
        sides = [launch(10 * draw.lognormvariate(0, 0.1)) for _ in range(6)]
        found = check(sides[:1], sides[1:], CheckLimits(step_ratio=0.0, phase_ratio=0.0))
        wrong += verdict_of(found, "step_ns") is CheckVerdict.REGRESSION
    assert 0 < wrong <= 15
