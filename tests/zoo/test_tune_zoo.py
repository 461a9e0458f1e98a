"""The page of tuned trainings: what counts as reached, declined, recommended, and inside a forecast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def tune_zoo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """It is a program; its modules import each other as siblings."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import tune_zoo as program

    return program


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
        "commit": "abc",
        "machine": {"cpu": "a processor", "cores": 2},
        "budget_s": 180.0,
        "wall_s": 77.0,
        "recommended": recommended,
        "tune": {"trials": [trial]},
        **more,
    }


FOUND = {"speed_of_twin_ratio": 0.95, "saving_tuned_ratio": 0.5, "saving_of_twin_ratio": 0.52}


def test_a_page_tells_what_was_reached_and_what_is_for_the_reader(tune_zoo: Any) -> None:
    reached = result("faulty", ["gc-freeze"], "faster", **FOUND)
    declined = result("faulty", [], "rejected", **{**FOUND, "speed_of_twin_ratio": 0.5})
    page = tune_zoo.draw_page([reached, declined, result("twin", [], "rejected")])
    assert (
        "**1 of 1 faulty trainings that a technique applies to reach 90% of their twin's speed.** In 1 others" in page
    )
    assert "1 of 1 healthy trainings and twins get no recommendation" in page
    assert "1 of 1 measured savings lie inside the forecast's range; its median width is 0.15" in page
    assert "| tuned tidy-heap | 2 | gc-freeze | 0.95 | 0.50 | 0.52 | 2.00 (1.50..2.50), 4 | passed | 77 s | - |" in page


def test_a_missed_fault_is_not_declined(tune_zoo: Any) -> None:
    missed = result("faulty", [], "cannot tell", **{**FOUND, "speed_of_twin_ratio": 0.5})
    assert not tune_zoo.is_declined(missed)
    assert "0 of 1 faulty" in tune_zoo.draw_page([missed])


def test_a_few_pairs_judge_no_forecast(tune_zoo: Any) -> None:
    one = result("faulty", ["gc-freeze"], "faster", **FOUND)
    assert len(tune_zoo.judge_forecasts([one])) == 1
    one["tune"]["trials"][0]["n"] = 3
    assert tune_zoo.judge_forecasts([one]) == []


def test_what_wins_on_a_healthy_training_is_counted_apart(tune_zoo: Any) -> None:
    wins = result("twin", ["gc-freeze"], "faster", saving_tuned_ratio=0.44)
    wrong = result("healthy", ["gc-freeze"], "faster", saving_tuned_ratio=-0.02)
    page = tune_zoo.draw_page([wins, wrong, result("healthy", [], "cannot tell")])
    assert "1 of 3 healthy trainings and twins get no recommendation. To 1 more tune recommended what wins" in page
    assert "to 1 it recommended what does not win." in page
    assert "| twin tuned tidy-heap | gc-freeze | recommended what wins | 0.44 |" in page


def test_a_subset_has_every_rule_once_and_the_page_says_what_was_not_run(tune_zoo: Any) -> None:
    scenarios = tune_zoo.harness.choose_scenarios("all", "*")
    subset = tune_zoo.choose_subset(scenarios, 2)
    rules = {one.rules[0] for one in scenarios if tune_zoo._levels("faulty", one, 2)}
    assert sorted(one.rules[0] for one in subset["faulty"]) == sorted(rules)
    assert {one.split for one in subset["faulty"]} == {"tuned", "blind"}
    assert len(subset["twin"]) == len(subset["healthy"]) == tune_zoo.SUBSET_SOUND_COUNT // 2
    assert all(one in subset["faulty"] for one in subset["twin"])
    assert all(one.kind == "healthy" for one in subset["healthy"])
    whole = sum(len(tune_zoo._levels("faulty", one, 2)) for one in scenarios)
    page = tune_zoo.draw_page([result("faulty", ["gc-freeze"], "faster", **FOUND)])
    assert f"- Not run: {whole - 1} of the zoo's faulty trainings, {whole} twins and" in page
