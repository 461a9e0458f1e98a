"""Tuned trainings: what counts as reached, declined, and inside a forecast."""

from __future__ import annotations

from typing import Any

import tune_zoo


def result(part: str, recommended: list[str], verdict: str, **more: Any) -> dict[str, Any]:
    trial = {
        "id": "gc-freeze",
        "techniques": ["gc-freeze"],
        "verdict": verdict,
        "speedup_ratio": 2.0 if verdict == "faster" else None,
        "low_ratio": 1.5,
        "high_ratio": 2.5,
        "n": 4,
        "forecast": {"low_ratio": 0.4, "high_ratio": 0.55},
        "quality": {"status": "passed"},
    }
    return {
        "part": part,
        "scenario": "tidy-heap",
        "split": "tuned",
        "rule": "gc-pause",
        "level": 2,
        "status": "done",
        "date": "2026-01-01T00:00:00+00:00",
        "machine": {"cpu": "a processor", "cores": 2},
        "budget_s": 180.0,
        "wall_s": 77.0,
        "recommended": recommended,
        "trials": [trial],
        "times_ns": {},
        **more,
    }


def times(tuned: float | None, fixed: float = 48.0) -> dict[str, Any]:
    """Runs of each side, of which the training as it is takes 100."""
    sides = {"as it is": 100.0, "fixed": fixed} | ({} if tuned is None else {"tuned": tuned})
    return {"times_ns": {side: [ns, ns] for side, ns in sides.items()}}


def test_nothing_recommended_and_a_sixteenth_of_the_saving_are_not_reached() -> None:
    # The twin saves 0.09, so that doing nothing is within a tenth of its speed.
    nothing = result("faulty", [], "cannot tell", **times(None, fixed=91.0))
    little = result("faulty", ["gc-freeze"], "faster", **times(99.4, fixed=90.5))
    half = result("faulty", ["gc-freeze"], "faster", **times(95.0, fixed=90.5))
    assert [tune_zoo.hold_against(one, min).is_reached for one in (nothing, little, half)] == [False, False, True]


def test_a_missed_fault_is_not_declined() -> None:
    missed = result("faulty", [], "cannot tell", **times(None))
    assert not tune_zoo.is_declined(missed)


def test_a_few_pairs_judge_no_forecast() -> None:
    one = result("faulty", ["gc-freeze"], "faster", **times(50.0))
    assert len(tune_zoo.judge_forecasts([one])) == 1
    one["trials"][0]["n"] = 3
    assert tune_zoo.judge_forecasts([one]) == []


def test_a_subset_has_every_rule_once_and_twins_of_what_it_has() -> None:
    scenarios = tune_zoo.harness.choose_scenarios("all", "*")
    subset = tune_zoo.choose_subset(scenarios, 2)
    rules = {one.rules[0] for one in scenarios if tune_zoo._levels("faulty", one, 2)}
    assert sorted(one.rules[0] for one in subset["faulty"]) == sorted(rules)
    assert {one.split for one in subset["faulty"]} == {"tuned", "seen"}
    assert len(subset["twin"]) == len(subset["healthy"]) == tune_zoo.SUBSET_SOUND_COUNT // 2
    assert all(one in subset["faulty"] for one in subset["twin"])
    assert all(one.kind == "healthy" for one in subset["healthy"])
