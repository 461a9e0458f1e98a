"""Every rule finds its fault, and is silent where it is near."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.core.findings import Severity
from hotloop.core.lint import FILE_KINDS, LintFinding
from hotloop.lint import LINT_RULES, lint_paths

from .cases import BRANCHED, CASES, FILES, KEPT, LOOP, SAVE_S, change

HEADINGS = ("What it does", "Why it costs", "How to tell", "What to do", "When it is wrong")


def lint_text(text: str, kind: str, folder: Path, save_s: float | None = None) -> list[LintFinding]:
    path = folder / FILES[kind]
    path.write_text(text)
    report, _ = lint_paths([str(path)], "0", save_s=save_s)
    assert report.unread == ()
    assert all(1 <= one.line <= text.count("\n") + 1 for one in report.findings)
    return list(report.findings)


@pytest.mark.parametrize("rule_id", list(LINT_RULES))
def test_the_rule_finds_its_fault_and_nothing_near(rule_id: str, tmp_path: Path) -> None:
    faulty, near = CASES[rule_id]
    kind, save_s = LINT_RULES[rule_id].reads, SAVE_S.get(rule_id)
    assert rule_id in {one.rule for one in lint_text(faulty, kind, tmp_path, save_s)}
    assert rule_id not in {one.rule for one in lint_text(near, kind, tmp_path, save_s)}


def test_a_clean_training_has_no_finding(tmp_path: Path) -> None:
    assert lint_text(LOOP, "python", tmp_path) == []


def test_branches_that_exclude_each_other_are_not_mixed(tmp_path: Path) -> None:
    assert "clipped-scaled-gradients" not in {one.rule for one in lint_text(BRANCHED, "python", tmp_path)}


def test_a_loss_that_is_another_one_by_then_is_not_kept(tmp_path: Path) -> None:
    text = change(KEPT, "        total", "        loss = plain(loss)\n        total")
    assert "kept-graph" not in {one.rule for one in lint_text(text, "python", tmp_path)}


@pytest.mark.parametrize("rule_id", list(LINT_RULES))
def test_every_rule_has_a_manual_with_its_five_headings(rule_id: str) -> None:
    rule = LINT_RULES[rule_id]
    sections = [part.partition("\n") for part in rule.manual.split("## ")[1:]]
    assert tuple(title.strip() for title, _, _ in sections) == HEADINGS
    assert all(len(text.split()) >= 5 for _, _, text in sections)
    assert rule.reads in FILE_KINDS
    assert not rule.summary.endswith(".")


def test_what_a_cost_is_unknown_of_is_never_above_low(tmp_path: Path) -> None:
    for rule_id, rule in LINT_RULES.items():
        found = [one for one in lint_text(CASES[rule_id][0], rule.reads, tmp_path) if one.rule == rule_id]
        if "never above `low`" in rule.manual:
            assert {one.severity for one in found} <= {Severity.LOW, Severity.INFO}
