"""What each start pays once: compared over all steps, adopted only where later steps lose nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hotloop.change.tune.goals import compare_whole_runs
from hotloop.change.tune.search import (
    Candidate,
    find_candidates,
    least_steps,
)
from hotloop.change.tune.trials import Ran
from hotloop.core.findings import Basis, Finding, Fix, Saving
from hotloop.core.strategy import Strategy
from hotloop.core.tuning import TrialVerdict
from tests.tune.records import FakeMachine, best_id, candidate, measurement, tune
from tests.tune.test_tuner import Stub

STEPS = 40
START_NS = 60e6
"""What the first steps of the unchanged command take beyond later ones: a step is 1 ms."""


def start_finding(technique: str = "a", cost_ratio: float = 0.6, **more: object) -> Finding:
    return Finding(
        rule="recompilation",
        title="t",
        cost_ns=round(START_NS),
        cost_ratio=cost_ratio,
        evidence={"steps": 14},
        fix=Fix(technique=technique),
        base="run",
        **more,  # type: ignore[arg-type]
    )


class StartMachine(FakeMachine):
    """A machine whose processes also start: ``starts`` is what is left of START_NS under a technique."""

    def __init__(self, factors: Mapping[str, float], starts: Mapping[str, float]) -> None:
        super().__init__(factors)
        self.starts = starts

    def make(self, names: tuple[str, ...]) -> Ran:
        ran = super().make(names)
        assert ran.measured is not None
        start_ns = START_NS
        for name in names:
            start_ns *= self.starts.get(name, 1.0)
        whole_ns = round(STEPS * ran.measured.step_ns + start_ns * self.random.lognormvariate(0, 0.01))
        return replace(ran, measured=replace(ran.measured, whole_ns=whole_ns, whole_count=STEPS))


def one_time(name: str) -> Candidate:
    return candidate(name, one_time_ratio=0.6)


OBSERVED = measurement(whole_ns=round(STEPS * 1e6 + START_NS), whole_count=STEPS)


def test_what_only_the_start_pays_is_proven_over_whole_runs() -> None:
    campaign, trials = tune(StartMachine({"a": 1.0}, {"a": 0.1}), [one_time("a")], observed=[OBSERVED])
    found = trials["a"]
    assert found.verdict is TrialVerdict.FASTER
    assert found.speedup_ratio == pytest.approx(100 / 46, rel=0.03)
    assert (found.first_steps, found.unit) == (STEPS, "step")
    assert best_id(campaign) == "a"


def test_a_quicker_start_with_slower_steps_is_not_adopted() -> None:
    campaign, trials = tune(StartMachine({"a": 1.1}, {"a": 0.1}), [one_time("a")], observed=[OBSERVED])
    found = trials["a"]
    assert found.verdict is TrialVerdict.FASTER
    assert best_id(campaign) is None


def test_what_wins_in_every_step_goes_before_a_quicker_start_and_both_are_told() -> None:
    machine = StartMachine({"a": 1.0, "b": 0.9}, {"a": 0.1})
    campaign, trials = tune(machine, [one_time("a"), candidate("b")], observed=[OBSERVED])
    assert {name: one.verdict for name, one in trials.items()} == dict.fromkeys("ab", TrialVerdict.FASTER)
    assert best_id(campaign) == "b"


def test_processes_of_other_lengths_do_not_compare() -> None:
    one = measurement(whole_ns=10, whole_count=10)
    found = compare_whole_runs([one] * 4, [replace(one, whole_count=9)] * 4, [one] * 4, level=0.01)
    assert (found.verdict, found.decided) == (TrialVerdict.CANNOT_TELL, True)
    other = replace(one, samples_per_step=16.0)
    assert compare_whole_runs([one] * 4, [other] * 4, [one] * 4, level=0.01).decided
    old = replace(one, whole_ns=None)
    assert "unknown" in compare_whole_runs([one] * 4, [old] * 4, [one] * 4, level=0.01).reason


def test_a_finding_about_the_start_makes_a_candidate_for_it_unless_another_is_about_steady_steps() -> None:
    techniques = {"stub": Stub()}

    def check(strategy: Strategy) -> Strategy:
        return strategy

    (start,) = find_candidates([start_finding("stub")], techniques, check)
    assert (start.is_one_time, start.one_time_ratio) == (True, 0.6)
    saving = Saving(low_ratio=0.1, mid_ratio=0.1, high_ratio=0.2, basis=Basis.MEASURED)
    steady = replace(start_finding("stub"), base="steady", saving=saving)
    (both,) = find_candidates([start_finding("stub"), steady], techniques, check)
    assert (both.is_one_time, both.forecast) == (False, saving)


def test_what_a_technique_for_the_start_saves_may_be_seen_in_every_step_of_a_short_look() -> None:
    class ForStarts(Stub):
        acts_on_start = True

    saving = Saving(low_ratio=0.1, mid_ratio=0.1, high_ratio=0.2, basis=Basis.MEASURED)
    finding = replace(start_finding("stub"), base="steady", saving=saving)
    (found,) = find_candidates([finding], {"stub": ForStarts()}, lambda strategy: strategy)
    assert (found.is_one_time, found.forecast) == (True, saving)


def test_a_trial_has_as_many_steps_as_show_the_start() -> None:
    findings = [start_finding()]
    assert least_steps(findings) == 24
    assert least_steps([replace(findings[0], base="steady")]) == 0
