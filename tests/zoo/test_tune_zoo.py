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


def passes(*rows: dict[str, Any], **more: Any) -> Any:
    import tables

    header = {"commit": "abc", "date": "2026-01-01", "machine": {"cpu": "a processor", "cores": 2, "python": "3"}}
    return [tables.Table({**header, **more}, rows)]


def test_a_page_tells_what_was_reached_and_what_is_for_the_reader(tune_zoo: Any) -> None:
    reached = result("faulty", ["gc-freeze"], "faster", **times(50.0))
    declined = result("faulty", [], "rejected", **times(None))
    page = tune_zoo.draw_page(passes(reached, declined, result("twin", [], "rejected")))
    assert "**1 of 2 faulty trainings reach their twin by the fastest runs, 1 by medians.** To 1 of them" in page
    assert "1 of 1 healthy trainings and twins get no recommendation" in page
    assert "1 of 1 measured savings lie inside the forecast's range; its median width is 0.15" in page
    assert "| 2 | gc-freeze | 0.96 | 0.50 | 0.52 | 0.96, 0.50, 0.52 | yes | 2.00 (1.50..2.50), 4 | passed | 77" in page


def test_nothing_recommended_and_a_sixteenth_of_the_saving_are_not_reached(tune_zoo: Any) -> None:
    # The twin saves 0.09, so that doing nothing is within a tenth of its speed.
    nothing = result("faulty", [], "cannot tell", **times(None, fixed=91.0))
    little = result("faulty", ["gc-freeze"], "faster", **times(99.4, fixed=90.5))
    half = result("faulty", ["gc-freeze"], "faster", **times(95.0, fixed=90.5))
    assert [tune_zoo.hold_against(one, min).is_reached for one in (nothing, little, half)] == [False, False, True]
    page = tune_zoo.draw_page(passes(nothing, little, half))
    assert "**1 of 3 faulty trainings reach their twin" in page


def test_what_was_run_again_for_its_outcome_stands_below_and_counts_for_nothing(tune_zoo: Any) -> None:
    missed = result("faulty", [], "cannot tell", **times(None))
    other = result("faulty", ["gc-freeze"], "faster", **times(50.0)) | {"scenario": "deep-mlp"}
    again = result("faulty", ["gc-freeze"], "faster", **times(50.0))
    page = tune_zoo.draw_page([*passes(missed, other), *passes(again, commit="def", date="2026-01-02")])
    assert "**1 of 2 faulty trainings reach" in page
    counted, below = page.split("## A part of them run again")
    assert "commit abc" in counted
    assert "commit def" not in counted
    assert "commit def" in below
    assert "| tuned tidy-heap | 2 | gc-freeze | 0.96" in below


def test_a_missed_fault_is_not_declined(tune_zoo: Any) -> None:
    missed = result("faulty", [], "cannot tell", **times(None))
    assert not tune_zoo.is_declined(missed)
    assert "**0 of 1 faulty" in tune_zoo.draw_page(passes(missed))


def test_a_few_pairs_judge_no_forecast(tune_zoo: Any) -> None:
    one = result("faulty", ["gc-freeze"], "faster", **times(50.0))
    assert len(tune_zoo.judge_forecasts([one])) == 1
    one["trials"][0]["n"] = 3
    assert tune_zoo.judge_forecasts([one]) == []


def test_what_wins_on_a_healthy_training_is_counted_apart(tune_zoo: Any) -> None:
    wins = result("twin", ["gc-freeze"], "faster", **times(56.0))
    wrong = result("healthy", ["gc-freeze"], "faster", **times(102.0))
    page = tune_zoo.draw_page(passes(wins, wrong, result("healthy", [], "cannot tell")))
    assert "1 of 3 healthy trainings and twins get no recommendation. To 1 more tune recommended what wins" in page
    assert "to 1 it recommended what does not win." in page
    assert "| twin tuned tidy-heap | gc-freeze | recommended what wins | 0.44 | 0.44 |" in page


def test_a_subset_has_every_rule_once_and_the_page_names_what_was_not_run(tune_zoo: Any) -> None:
    scenarios = tune_zoo.harness.choose_scenarios("all", "*")
    subset = tune_zoo.choose_subset(scenarios, 2)
    rules = {one.rules[0] for one in scenarios if tune_zoo._levels("faulty", one, 2)}
    assert sorted(one.rules[0] for one in subset["faulty"]) == sorted(rules)
    assert {one.split for one in subset["faulty"]} == {"tuned", "seen"}
    assert len(subset["twin"]) == len(subset["healthy"]) == tune_zoo.SUBSET_SOUND_COUNT // 2
    assert all(one in subset["faulty"] for one in subset["twin"])
    assert all(one.kind == "healthy" for one in subset["healthy"])
    whole = sum(len(tune_zoo._levels("faulty", one, 2)) for one in scenarios)
    page = tune_zoo.draw_page(passes(result("faulty", ["gc-freeze"], "faster", **times(50.0))))
    assert f"{whole - 1} faulty (tuned input-transform," in page
    assert f"; {whole} twin (" in page
