from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hotloop.core.check import Check, CheckVerdict, Launch, Measure
from hotloop.core.phases import PHASES
from hotloop.evidence.analyze.check import CheckLimits, judge

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


NOISY = launch(20.0, error_ms=9.0)
PASS, REGRESSION, OPEN = CheckVerdict.PASS, CheckVerdict.REGRESSION, CheckVerdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("run", "baseline", "noise_ratio", "verdict", "parts"),
    [
        (
            launch(12.0), QUIET, None, REGRESSION,
            {"phase/forward": REGRESSION, "samples_per_s": REGRESSION, "phase/backward": PASS},
        ),
        (launch(10.02), QUIET, None, PASS, {}),
        (launch(25.0), [launch(18.0), launch(30.0), launch(19.0)], None, OPEN, {}),
        # one launch a side says little
        (launch(15.0), [launch(10.0)], None, OPEN, {"step_ns": OPEN}),
        (launch(10.2), [launch(10.0)], None, PASS, {"step_ns": PASS}),
        (launch(8.0), [launch(10.0)], None, PASS, {"step_ns": PASS}),
        (launch(25.0), [launch(10.0)], None, REGRESSION, {"step_ns": REGRESSION}),
        (launch(13.0), [launch(10.0)], 0.02, REGRESSION, {"step_ns": REGRESSION}),
        (launch(13.0), [launch(10.0)], 0.2, OPEN, {"step_ns": OPEN}),
        # a launch against itself, whatever its noise; launches that agree by chance are no proof of silence
        (NOISY, [NOISY], None, PASS, {"step_ns": PASS}),
        (launch(11.0, error_ms=1.0), [launch(10.0, error_ms=1.0)] * 3, None, None, {"step_ns": OPEN}),
        (launch(10.0, memory=1.2e9), QUIET, None, REGRESSION, {"memory_peak_bytes": REGRESSION}),
        (launch(30.0, cores=2), [launch(ms, cores=8) for ms in (10.0, 10.1, 9.9)], None, OPEN, {}),
    ],
)  # fmt: skip
def test_a_run_is_judged_by_the_noise_between_launches(
    run: Launch,
    baseline: list[Launch],
    noise_ratio: float | None,
    verdict: CheckVerdict | None,
    parts: dict[str, CheckVerdict],
) -> None:
    found = check([run], baseline, CheckLimits(launch_noise_ratio=noise_ratio))
    assert verdict in (None, found.verdict)
    assert {name: verdict_of(found, name) for name in parts} == parts


def test_steps_of_other_work_are_judged_by_the_unit() -> None:
    slow = launch(20.0, units=32)
    found = check([slow], QUIET)
    assert {one.id: one.reason for one in found.skipped}["step_ns"].startswith("a step has 16 to 32 samples")
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


def test_of_a_mixed_baseline_the_launches_of_this_machine_count() -> None:
    mixed = [*(launch(ms, cores=8) for ms in (10.0, 10.1, 9.9, 10.05)), launch(30.0, cores=2)]
    found = check([launch(12.0, cores=8)], mixed)
    assert (found.verdict, found.baseline_count) == (CheckVerdict.REGRESSION, 4)
    assert "cores 8 -> 2" in check([launch(30.0, cores=2)], mixed[:4]).warnings[0]
    assert "not known" in check([launch(10.0)], [launch(10.0)]).noise
    assert found.warnings == ("1 of 5 baseline launches ran on another machine and are left out",)
    assert check([launch(10.0, cores=8)], mixed).verdict is CheckVerdict.PASS
    assert check([launch(10.0, cores=4)], mixed).verdict is CheckVerdict.INCONCLUSIVE


def test_budgets_are_about_the_launch() -> None:
    limits = CheckLimits(budgets={"step_ms": 9.0, "samples_per_s": 1000.0, "tokens_per_s": 5.0})
    found = check([launch(10.0)], [], limits)
    assert verdict_of(found, "budget/step_ms") is CheckVerdict.REGRESSION
    assert verdict_of(found, "budget/samples_per_s") is CheckVerdict.PASS
    assert verdict_of(found, "budget/tokens_per_s") is CheckVerdict.INCONCLUSIVE
    assert verdict_of(
        check([launch(10.0, error_ms=2)], [], CheckLimits(budgets={"step_ms": 9.5})), "budget/step_ms"
    ) is (CheckVerdict.INCONCLUSIVE)


def test_equal_programs_are_seldom_called_a_regression() -> None:
    """A/A with a tolerance of 0 and a noise of 10 % between launches: the level promised, with room for luck."""
    draw = random.Random(7)
    wrong = 0
    for _ in range(600):
        sides = [launch(10 * draw.lognormvariate(0, 0.1)) for _ in range(6)]
        found = check(sides[:1], sides[1:], CheckLimits(step_ratio=0.0, phase_ratio=0.0))
        wrong += verdict_of(found, "step_ns") is CheckVerdict.REGRESSION
    assert 0 < wrong <= 15
