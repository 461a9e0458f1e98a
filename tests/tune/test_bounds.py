"""What the pairs of a bound show, what refuses it, and which statements are left out of a working copy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.change.apply import ABLATIONS, ACTS, TECHNIQUES, check_strategy
from hotloop.change.tune.bounds import measure_bound, steps_to_recur
from hotloop.change.tune.script import Refusal
from hotloop.change.tune.search import find_candidates
from hotloop.change.tune.statements import leave_out_statements
from hotloop.change.tune.trials import CRASH, Ran
from hotloop.core.findings import Bound, Finding, Fix, Where
from hotloop.core.report import Report, StepSummary, Timeline
from hotloop.core.strategy import Choice, Strategy, StrategyError
from hotloop.judge.diagnose import RULES

from .records import applied, failed, measurement, ok

ABLATION = "no-gc"
FINDING = Finding(rule="gc-pause", title="", evidence={}, cost_ns=200_000)


def play(b: Ran, *, budget_s: float = 1000.0, finding: Finding = FINDING, phase_ratio: float | None = None) -> Bound:
    """A bound of pairs whose A takes 1 ms a step, on a clock that each process moves on by ten seconds."""
    clock = [0.0]

    def run(side: str, number: int) -> Ran:
        clock[0] += 10.0
        step_ns = 1e6 * (1.01 if number % 2 else 0.99)
        return b if side == "B" else ok(measurement(step_ns, whole_count=40, breakdown={"checkpoint": 1e5}))

    return measure_bound(
        ABLATIONS[ABLATION],
        finding,
        run,
        phase_ratio=phase_ratio,
        waiting_count=0,
        until_s=budget_s,
        process_s=10.0,
        clock_s=lambda: clock[0],
    )


def without(step_ns: float, **changes: Any) -> Ran:
    return ok(measurement(step_ns, (ABLATION,), **{"whole_count": 40, "breakdown": {"checkpoint": 1e5}, **changes}))


@pytest.mark.parametrize(("step_ns", "saved_ratio"), [(0.8e6, 0.2), (1.1e6, 0.0)])
def test_a_bound_is_what_the_step_saves_without_the_cost_and_never_negative(step_ns: float, saved_ratio: float) -> None:
    bound = play(without(step_ns))
    assert bound.saving is not None
    assert (bound.ablation, bound.saving.basis.value, bound.pairs >= 4) == (ABLATION, "bounded", True)
    assert bound.saving.mid_ratio == pytest.approx(saved_ratio, abs=1e-3)


PREVENTED = (applied(ABLATION, "not applicable", "the fact"),)


@pytest.mark.parametrize(
    ("b", "settings", "reason"),
    [
        (failed(CRASH), {}, "did not train: crash: why"),
        (ok(measurement(8e5, whole_count=40)), {}, "nothing to leave out"),
        (without(8e5, applied=PREVENTED), {}, "the fact"),
        (without(8e5, whole_count=12), {}, "12 steps instead of 40"),
        (without(8e5, breakdown={}), {}, "no checkpoints"),
        (without(8e5), {"budget_s": 50.0}, "2 of at least 4 pairs"),
        (without(8e5), {"finding": replace(FINDING, phase="checkpoint"), "phase_ratio": 0.4}, "checkpoint takes 10%"),
    ],
)
def test_what_shows_no_bound_is_refused_with_its_reason(b: Ran, settings: dict[str, Any], reason: str) -> None:
    bound = play(b, **settings)
    assert bound.saving is None
    assert reason in bound.reason


@pytest.mark.parametrize(("times_ns", "steps"), [([5, 5, 5, 45, 5] * 4, 25), ([13, 12, 13, 14, 13] * 4, 0)])
def test_a_cost_that_recurs_needs_as_many_steps(times_ns: list[int], steps: int) -> None:
    timeline = Timeline(rank=0, first_step=tuple(range(20)), phase_ns={"other": tuple(times_ns)})
    summary = StepSummary(**{**dict.fromkeys(StepSummary.__dataclass_fields__), "count": 20})  # type: ignore[arg-type]
    report = Report(tool_version="", command=(), verdict="", step=summary, timelines=(timeline,))
    assert steps_to_recur(report, replace(FINDING, phase="other", cost_ns=8)) == steps


def test_no_ablation_reaches_a_strategy_or_a_tuning() -> None:
    assert not set(ABLATIONS) & {*TECHNIQUES, *ACTS}
    assert {rule.ablation for rule in RULES.values()} - {""} <= set(ABLATIONS)
    for ablation in ABLATIONS:
        with pytest.raises(StrategyError, match="unknown technique"):
            check_strategy(Strategy(choices=(Choice(technique=ablation),)), TECHNIQUES)
    findings = [replace(FINDING, rule=rule, fix=Fix(technique=ablation)) for rule in RULES for ablation in ABLATIONS]
    offered = find_candidates(findings, dict(TECHNIQUES.items()), lambda one: check_strategy(one, TECHNIQUES))
    assert not {choice.technique for one in offered for choice in one.strategy.choices} & set(ABLATIONS)


SCRIPT = """\
import torch
def report(model):
    norms = [p.norm() for p in model.parameters()]
    print(norms)
def score(model):
    return sum(p.norm() for p in model.parameters())
for step in range(9):
    loss = model(x)
    loss.backward()
    print(
        loss.item(), step)
    report(model)
    total = score(model)
    a(); b()
"""


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        (10, {10: "    pass", 11: ""}),
        (11, {10: "    pass", 11: ""}),
        (12, {12: "    pass"}),
        (3, {12: "    pass"}),
        (4, {4: "    pass"}),
    ],
)
def test_statements_whose_value_nobody_reads_are_left_out(tmp_path: Path, line: int, changed: dict[int, str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    place = Where(file=str(script), line=line, function="<module>")
    lines = leave_out_statements([place], tmp_path.resolve())["train.py"].decode().splitlines()
    assert len(lines) == len(SCRIPT.splitlines())
    before = dict(enumerate(SCRIPT.splitlines(), 1))
    assert {at: text for at, text in enumerate(lines, 1) if text != before[at]} == changed


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [
        ("train.py", 6, "line 13 computes may be read"),
        ("train.py", 13, "line 13 computes may be read"),
        ("train.py", 9, "calls backward"),
        ("train.py", 14, "more than one statement"),
        ("../train.py", 1, "not in the folder of the command"),
    ],
)
def test_statements_that_training_may_need_are_refused(tmp_path: Path, name: str, line: int, reason: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with pytest.raises(Refusal, match=reason):
        leave_out_statements([Where(file=str(tmp_path / name), line=line, function="f")], tmp_path.resolve())
