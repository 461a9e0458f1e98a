"""Combinations from a suggester: looked at once, and proven with processes of their own."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from hotloop.core.errors import UsageError
from hotloop.core.findings import Numerics
from hotloop.core.measurement import Measurement
from hotloop.core.strategy import Choice, Strategy, StrategyError
from hotloop.core.tuning import TrialVerdict
from hotloop.tune.budget import Budget
from hotloop.tune.search import Candidate
from hotloop.tune.suggested import LOOKED, OFF, group_candidates, make_optuna, tune_suggested
from hotloop.tune.trials import OK, Ran
from hotloop.tune.tuner import Campaign, best_arm, describe_trials, go_on
from tests.tune.records import applied as record_of


class Listed:
    """Suggests a list of sets in turn, the last one for ever; keeps what it was told."""

    def __init__(self, *sets: str) -> None:
        self._sets, self.told = [one.split() for one in sets], list[float | None]()

    def suggest(self) -> dict[str, str]:
        taken = self._sets[min(len(self.told), len(self._sets) - 1)]
        return {name: name for name in taken} or {"a": OFF}

    def record(self, ratio: float | None) -> None:
        self.told.append(ratio)


FACTORS = {"a": 0.6, "b": 0.8, "slow": 1.5, "still": 1.0}


def candidate(name: str, **settings: int) -> Candidate:
    return Candidate(
        id=name,
        strategy=Strategy(choices=(Choice(technique=name.rstrip("0123456789"), settings=settings),)),
        forecast=None,
        rules=("r",),
        numerics=Numerics.EXACT,
    )


def measurement(step_ns: float, names: Sequence[str] = ()) -> Measurement:
    told = tuple(record_of(name) for name in names)
    return Measurement(
        step_ns=step_ns,
        steady_count=30,
        samples_per_step=8.0,
        tokens_per_step=None,
        peak_bytes=1000,
        one_time_ns=50,
        losses=tuple(2.0 - 0.01 * i for i in range(40)),
        applied=told,
    )


class Machine:
    """Multiplies the step time by each technique's factor; ``still`` says that it did nothing; keeps every start."""

    def __init__(self) -> None:
        self.now_s, self.numbers = 0.0, list[tuple[str, int]]()
        self._random = random.Random(11)

    def run(self, strategy: Strategy, number: int) -> Ran:
        self.now_s += 10.0
        names = [choice.technique for choice in strategy.choices]
        self.numbers.append((" ".join(names), number))
        step_ns = 1e6 * self._random.lognormvariate(0, 0.005)
        for name in names:
            step_ns *= FACTORS[name]
        measured = measurement(step_ns, [name for name in names if name != "still"])
        return Ran(ended=OK, reason="", duration_s=10.0, measured=measured)

    def campaign(self, budget_s: float = 1e5) -> Campaign:
        return Campaign(
            goal="speed",
            check=lambda strategy: strategy,
            run=self.run,
            clock_s=lambda: self.now_s,
            budget=Budget(whole_s=budget_s),
            emit=lambda text: None,
        )


def run(suggester: Listed, names: Sequence[str] = tuple(FACTORS), budget_s: float = 1e5) -> tuple[Campaign, Machine]:
    machine = Machine()
    campaign = machine.campaign(budget_s)
    tune_suggested(campaign, [candidate(name) for name in names], [measurement(1e6)], suggester)
    return campaign, machine


def test_the_best_combinations_are_proven_with_fresh_processes() -> None:
    suggester = Listed("", "a", "a b", "slow", "a b")
    campaign, machine = run(suggester)
    found = {trial.id: trial for trial in describe_trials(campaign)}
    assert suggester.told[0] == 1.0
    assert suggester.told[2] == suggester.told[4]
    best = best_arm(campaign)
    assert best is not None
    assert best.candidate.id == "a + b"
    assert found["a + b"].verdict is found["a"].verdict is TrialVerdict.FASTER
    assert found["a + b"].n == 4
    # The process that was looked at in the search (number 0) is no part of the proof.
    assert [number for name, number in machine.numbers if name == "a b"] == [0, 1, 2, 3, 4]
    assert found["slow"].verdict is TrialVerdict.CANNOT_TELL
    assert LOOKED in found["slow"].reason
    assert len({(name, number) for name, number in machine.numbers}) == len(machine.numbers)


def test_a_look_is_never_added_to() -> None:
    campaign, machine = run(Listed("a", "slow"), names=("a", "slow"), budget_s=150.0)
    campaign.budget = Budget(whole_s=1e5)
    before = [len(arm.own) for arm in campaign.arms if arm.is_look]
    assert before
    go_on(campaign, campaign.budget.until_s)
    assert [len(arm.own) for arm in campaign.arms if arm.is_look] == before
    assert [name for name, _ in machine.numbers].count("slow") == 1


def test_what_acts_on_nothing_is_not_taken_again() -> None:
    suggester = Listed("a still", "a still")
    campaign, machine = run(suggester)
    assert suggester.told[0] is None
    assert suggester.told[1] == pytest.approx(1 / 0.6, rel=0.05)
    assert [name for name, _ in machine.numbers].count("a still") == 1
    best = best_arm(campaign)
    assert best is not None
    assert best.candidate.id == "a"


def test_what_cannot_stand_together_is_told_as_failed_and_never_run() -> None:
    def refuse(strategy: Strategy) -> Strategy:
        if len(strategy.choices) > 1:
            raise StrategyError("conflict")
        return strategy

    machine = Machine()
    campaign = machine.campaign()
    campaign.check = refuse
    suggester = Listed("a b")
    tune_suggested(campaign, [candidate("a"), candidate("b")], [measurement(1e6)], suggester)
    assert set(suggester.told) == {None}
    assert {name for name, _ in machine.numbers} == {""}


def test_nothing_promising_is_not_proven_and_half_of_the_budget_is_for_proof() -> None:
    campaign, machine = run(Listed("slow"), names=("slow",), budget_s=500.0)
    assert best_arm(campaign) is None
    assert [name for name, _ in machine.numbers].count("slow") == 1
    nothing, quiet = run(Listed("a"), names=())
    assert (nothing.arms, quiet.numbers) == ([], [])


def test_forms_of_one_technique_are_one_choice() -> None:
    forms = [candidate(f"x{k}", k=k) for k in (1, 2)]
    refused = replace(candidate("y"), why_not="not tried: only you can decide to apply it")
    assert group_candidates([*forms, refused]) == {"x": (OFF, "x1", "x2")}


def test_without_optuna_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r"not installed; run: pip install 'hotloop\[optuna\]'"):
        make_optuna({})
