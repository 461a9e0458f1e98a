"""The search over a fake machine: what is proven, rejected, failed and left out, within the budget."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hotloop.change.tune.goals import compare_speed
from hotloop.change.tune.search import BASELINE, Candidate, find_candidates, schedule_round
from hotloop.change.tune.trials import CRASH, HANG, OOM, Ran, pick_unit, time_per_unit
from hotloop.change.tune.tuner import (
    BaselineFailed,
    best_arm,
    end_early,
    tune_candidates,
)
from hotloop.core.applied import AppliedTechnique
from hotloop.core.findings import Basis, Finding, Fix, Kind, Numerics, Safety, Saving, Where
from hotloop.core.strategy import Strategy, StrategyError, strategy_to_toml
from hotloop.core.techniques import Setting, Stage, Technique
from hotloop.core.tuning import TrialVerdict
from tests.tune.records import (
    LOSSES,
    FakeMachine,
    best_id,
    failed,
    measurement,
    ok,
    tune,
)
from tests.tune.records import applied as record_of
from tests.tune.records import candidate as make_candidate


def forecast(ratio: float, *, low: float = 0.0, basis: Basis = Basis.MEASURED) -> Saving:
    return Saving(low_ratio=low, mid_ratio=ratio, high_ratio=ratio, basis=basis)


def candidate(name: str, ratio: float | None = 0.3, **changes: Any) -> Candidate:
    return make_candidate(name, forecast=None if ratio is None else forecast(ratio), **changes)


def test_proven_candidates_are_combined_and_the_rest_is_told() -> None:
    machine = FakeMachine({"a": 0.6, "b": 0.8, "same": 1.0, "slow": 1.5})
    campaign, found = tune(machine, [candidate(n) for n in ("a", "b", "same", "slow")])
    assert {name: trial.verdict for name, trial in found.items()} == {
        "a": TrialVerdict.FASTER,
        "b": TrialVerdict.FASTER,
        "same": TrialVerdict.CANNOT_TELL,
        "slow": TrialVerdict.SLOWER,
        "a + b": TrialVerdict.FASTER,
    }
    assert best_id(campaign) == "a + b"
    assert found["a + b"].speedup_ratio == pytest.approx(1 / 0.48, rel=0.05)
    assert all(trial.n >= 4 for trial in found.values())
    assert found["a"].quality["status"] == "passed"


def test_bad_candidates_end_alone_and_the_others_finish() -> None:
    diverged = measurement(names=("nan",), losses=(2.0, float("nan"), *LOSSES[2:]))
    machine = FakeMachine(
        {"good": 0.5, "nan": 1.0, "nothing": 1.0},
        {
            "oom": failed(OOM),
            "hang": failed(HANG),
            "segfault": failed(CRASH),
            "nan": ok(diverged),
            "nothing": ok(measurement()),
        },
    )
    names = ("oom", "good", "hang", "segfault", "nan", "nothing")
    _, found = tune(machine, [candidate(n) for n in names])
    assert [found[n].verdict.value for n in names] == ["failed", "faster", "failed", "failed", "rejected", "rejected"]
    assert found["oom"].reason == "oom: why"
    assert "diverged" in found["nan"].reason
    for name in ("oom", "hang", "segfault", "nan", "nothing"):
        assert machine.ran.count((name,)) == 1


def test_the_budget_ends_it_with_what_is_known() -> None:
    machine = FakeMachine({"a": 0.5, "b": 0.9})
    campaign, found = tune(machine, [candidate("a"), candidate("b")], budget_s=75.0)
    assert machine.now_s <= 75.0
    assert {trial.verdict for trial in found.values()} == {TrialVerdict.CANNOT_TELL}
    assert all("budget" in trial.reason for trial in found.values())
    assert best_arm(campaign) is None


def test_a_short_budget_goes_to_the_promising() -> None:
    names = [f"c{i}" for i in range(8)]
    machine = FakeMachine({name: 0.5 if name == "c5" else 1.0 for name in names})
    _, found = tune(machine, [candidate(n) for n in names], budget_s=600.0)
    assert found["c5"].verdict is TrialVerdict.FASTER
    assert any("dropped" in trial.reason for trial in found.values())


@pytest.mark.parametrize("disturbed", [{0}, {1}, {0, 1}])
def test_disturbed_processes_do_not_take_its_pairs_from_what_the_report_promises_most(disturbed: set[int]) -> None:
    machine = FakeMachine({"right": 0.7, "other": 0.95, "third": 1.0})

    def run(strategy: Strategy, number: int) -> Ran:
        ran = machine.run(strategy, number)
        if [choice.technique for choice in strategy.choices] != ["right"] or number not in disturbed:
            return ran
        assert ran.measured is not None
        return replace(ran, measured=replace(ran.measured, step_ns=3.4e6))

    forecasts = {"right": 0.3, "other": 0.25, "third": 0.2}
    _, found = tune(machine, [candidate(n, f) for n, f in forecasts.items()], run=run, budget_s=260.0)
    assert found["right"].n >= 4
    assert found["right"].n > found["third"].n


def explicit(line: int, status: str = "not applicable") -> AppliedTechnique:
    place = Where(file="/w/1/me/train.py", line=line, function="main")
    why = "fused=False was chosen in the script"
    return record_of("a", status, why, "reordered", explicit="fused=False", where=place)


def override_machine(line: int) -> tuple[FakeMachine, Callable[[Strategy, int], Ran]]:
    """The script switches something off at this line, and 'a' wins where it may override that."""
    machine = FakeMachine({"a": 0.5})

    def run(strategy: Strategy, number: int) -> Ran:
        ran = machine.run(strategy, number)
        assert ran.measured is not None
        if strategy.overrides("a"):
            return replace(ran, measured=replace(ran.measured, applied=(explicit(line, "applied"),)))
        told = (explicit(line),) if strategy else ()
        return replace(ran, measured=replace(ran.measured, step_ns=1e6, applied=told))

    return machine, run


def test_a_setting_of_the_script_that_a_rule_judged_is_overridden_and_named() -> None:
    machine, run = override_machine(12)
    campaign, found = tune(machine, [candidate("a", judged=("train.py:12",))], run=run)
    trial = found["a"]
    assert trial.verdict is TrialVerdict.FASTER
    assert trial.overrides == ("fused=False at train.py:12",)
    best = best_arm(campaign)
    assert best is not None
    assert "override = true" in strategy_to_toml(best.candidate.strategy)
    assert best.candidate.strategy.choices[0].where == ("train.py:12",)


def test_a_setting_of_the_script_that_no_rule_judged_stays() -> None:
    machine, run = override_machine(13)
    _, found = tune(machine, [candidate("a", judged=("train.py:12",))], run=run)
    trial = found["a"]
    assert trial.verdict is TrialVerdict.REJECTED
    assert machine.ran.count(("a",)) == 1


def test_what_the_report_calls_medium_is_tried_before_what_may_win_nothing() -> None:
    medium = make_candidate("bf16", forecast=forecast(0.1, low=0.06))
    machine = FakeMachine({"bf16": 0.6, "maybe": 1.0}, spread=0.001)
    _, found = tune(machine, [candidate("maybe", 0.15), medium], budget_s=130.0)
    assert found["bf16"].verdict is TrialVerdict.FASTER
    assert next(names for names in machine.ran if names) == ("bf16",)


def test_a_slow_starter_on_a_rule_of_thumb_does_not_take_the_time_of_what_was_measured() -> None:
    machine = FakeMachine({"quick": 0.7, "compile": 0.6}, durations_s={"compile": 90.0})
    slow = make_candidate("compile", forecast=forecast(0.6, basis=Basis.RULE_OF_THUMB))
    _, found = tune(machine, [slow, candidate("quick", 0.05)], budget_s=200.0)
    assert found["quick"].verdict is TrialVerdict.FASTER
    assert found["compile"].verdict is TrialVerdict.CANNOT_TELL
    assert found["compile"].reason == "not measured, the budget ran out" or "1 of" in found["compile"].reason


def test_a_baseline_that_repeats_itself_runs_once_before_and_only_beside_candidates() -> None:
    machine = FakeMachine({"a": 0.5})
    tune(machine, [candidate("a")])
    assert machine.ran == [(), ("a",), ("a",), (), (), ("a",), ("a",), ()]


def test_losses_that_do_not_repeat_need_two_processes_before_the_first_candidate() -> None:
    machine = FakeMachine({"a": 0.5})
    other = tuple(1.001 * loss for loss in LOSSES)
    campaign, _ = tune(machine, [candidate("a")], observed=[measurement(losses=other)])
    assert machine.ran[:3] == [(), (), ("a",)]
    assert campaign.guard is not None
    assert campaign.guard.loss.process_count == 3


def test_noise_that_hides_the_difference_ends_the_trial_with_the_time_that_it_would_take() -> None:
    machine = FakeMachine({"a": 0.9}, spread=0.2)
    _, found = tune(machine, [candidate("a")], budget_s=250.0)
    trial = found["a"]
    assert trial.verdict is TrialVerdict.CANNOT_TELL
    assert trial.n >= 8
    assert "dropped" in trial.reason
    assert machine.now_s <= 250.0


def test_a_baseline_that_fails_is_an_error() -> None:
    with pytest.raises(BaselineFailed, match="crash, why"):
        tune(FakeMachine({}), [candidate("a")], run=lambda strategy, number: failed(CRASH))


def test_what_was_proven_before_the_baseline_fails_is_kept() -> None:
    machine = FakeMachine({"a": 0.5, "b": 0.97}, spread=0.02)
    campaign = machine.campaign()
    plain = machine.run

    def run(strategy: Strategy, number: int) -> Ran:
        return plain(strategy, number) if strategy or number < 10 else failed(CRASH)

    campaign.run = run
    with pytest.raises(BaselineFailed):
        tune_candidates(campaign, [candidate("a"), candidate("b")], [measurement()])
    assert end_early(campaign, "it failed")
    assert campaign.why_ended == "it failed"
    assert best_id(campaign) == "a"
    assert not end_early(machine.campaign(), "it failed"), "nothing was compared"


def test_parts_that_undo_each_other_do_not_win_together() -> None:
    machine = FakeMachine({"a": 0.6, "b": 0.8})

    def run(strategy: Strategy, number: int) -> Ran:
        ran = machine.run(strategy, number)
        if len(strategy.choices) < 2 or ran.measured is None:
            return ran
        return ok(measurement(0.9e6, ("a", "b")))

    campaign, _ = tune(machine, [candidate("a"), candidate("b")], run=run)
    assert best_id(campaign) == "a"


def test_a_lossy_winner_without_a_visible_loss_is_not_adopted() -> None:
    machine = FakeMachine({})
    unseen = measurement(losses=())

    def run(strategy: Strategy, number: int) -> Ran:
        names = tuple(choice.technique for choice in strategy.choices)
        told = tuple(record_of(n, numerics="lossy") for n in names)
        one = replace(unseen, step_ns=5e5 if names else 1e6, losses_unseen="not seen", applied=told)
        return ok(one)

    campaign, found = tune(machine, [candidate("a")], run=run, observed=[unseen])
    trial = found["a"]
    assert (trial.verdict, trial.quality["status"]) == (TrialVerdict.FASTER, "unknown")
    assert "not adopted" in trial.reason
    assert best_arm(campaign) is None


def test_every_candidate_runs_beside_a_baseline_and_orders_alternate() -> None:
    for count, number in itertools.product(range(1, 8), range(2)):
        names = tuple(f"c{i}" for i in range(count))
        order, beside = schedule_round(names, number)
        assert sorted(name for name in order if name != BASELINE) == sorted(names)
        for name in names:
            assert order[beside[name]] == BASELINE
            assert abs(order.index(name) - beside[name]) <= 2
    assert schedule_round(("a",), 0)[0] == (BASELINE, "a")
    assert schedule_round(("a",), 1)[0] == ("a", BASELINE)


class Stub(Technique):
    id = "stub"
    summary = "a stub"
    numerics = Numerics.EXACT
    safety = Safety.ASK
    stage = Stage.LOADER
    treats = ("input-bound",)
    settings = (Setting(name="size", kind=int, default=1, help="a size", least=1),)


def finding(technique: str, saving: float, **settings: int) -> Finding:
    return Finding(
        rule="input-bound",
        kind=Kind.FAULT,
        title="t",
        phase="input_wait",
        cost_ns=1,
        cost_ratio=1.0,
        saving=forecast(saving, basis=Basis.SIMULATED),
        evidence={},
        fix=Fix(technique=technique, settings=settings, safety=Safety.ASK, numerics=Numerics.EXACT),
    )


def test_candidates_come_from_fixes_and_from_what_treats_the_rule() -> None:
    (named,) = find_candidates([finding("stub", 0.4, size=3, foreign=1)], {"stub": Stub()}, lambda s: s)
    assert dict(named.strategy.choices[0].settings) == {"size": 3}
    assert named.forecast is not None
    (other,) = find_candidates([finding("not-there", 0.4)], {"stub": Stub()}, lambda s: s)
    assert (other.id, other.forecast) == ("stub", None)


def test_forecasts_and_checks_prune() -> None:
    def refuse(strategy: Strategy) -> Strategy:
        raise StrategyError("size is too large")

    (small,) = find_candidates([finding("stub", 0.001)], {"stub": Stub()}, lambda s: s)
    assert "forecast" in small.why_not
    (wrong,) = find_candidates([finding("stub", 0.4)], {"stub": Stub()}, refuse)
    assert "too large" in wrong.why_not


def test_units_are_counted_only_where_steps_differ() -> None:
    equal = [measurement(), measurement(2e6)]
    assert pick_unit(equal) == "step"
    double = measurement(2e6, samples_per_step=16.0)
    assert pick_unit([equal[0], double]) == "sample"
    assert time_per_unit(double, "sample") == time_per_unit(equal[0], "sample")


def test_other_steps_of_a_drifting_run_prove_no_gain() -> None:
    """Later steps are larger and cheaper per sample: no gain of the code's."""
    base = measurement(work_drifts=True)
    later = replace(base, step_ns=1.6e6, samples_per_step=16.0)
    found = compare_speed([base] * 6, [later] * 6, [base] * 6, level=0.05)
    assert (found.verdict, found.low_ratio, found.decided) == (TrialVerdict.CANNOT_TELL, None, True)
    faster = replace(base, step_ns=0.6e6)  # of as many samples
    assert compare_speed([base] * 6, [faster] * 6, [base] * 6, level=0.05).verdict is TrialVerdict.FASTER


def test_nothing_is_spent_on_a_lesser_way_to_do_what_is_proven() -> None:
    def exclusive(strategy: Strategy) -> Strategy:
        if {"a", "b"} <= {choice.technique for choice in strategy.choices}:
            raise StrategyError("a and b exclude each other")
        return strategy

    machine = FakeMachine({"a": 0.5, "b": 0.95})
    _, found = tune(machine, [candidate("a", 0.5), candidate("b", 0.05)], budget_s=200, check=exclusive)
    assert found["a"].verdict is TrialVerdict.FASTER
    assert found["b"].n == 0
    assert ("b",) not in machine.ran
