from dataclasses import replace

import pytest

from hotloop.core.findings import Basis, Finding, saving_within
from hotloop.judge.diagnose import find_problems
from hotloop.judge.diagnose.completion import share_out
from hotloop.judge.diagnose.rules.frequent_validation import frequent_validation
from hotloop.judge.diagnose.rules.logging_overhead import logging_overhead

from .build_analysis import find, fix_of, make_analysis, make_line, make_loader, saving_of

LOGGED = {"other_ns": (make_line(60, 1.0, "print(loss.item())"),)}


def logging_finding() -> Finding:
    return find(logging_overhead, make_analysis(other=0.4, lines=LOGGED))


def test_what_the_phase_does_not_hold_is_taken_off_cost_saving_and_title() -> None:
    (kept,), skipped = share_out([logging_finding()], make_analysis(other=0.1))
    assert skipped == ()
    assert kept.cost_ratio == pytest.approx(0.1)
    assert saving_of(kept).mid_ratio == pytest.approx(0.09)


def test_a_finding_of_which_nothing_is_left_is_not_told_but_skipped() -> None:
    kept, (skipped,) = share_out([logging_finding()], make_analysis())
    assert kept == ()
    assert skipped.rule == "logging-overhead"
    assert "print(loss.item())" in skipped.reason


def test_the_weaker_evidence_gives_way() -> None:
    known = logging_finding()
    guess = replace(known, rule="preprocessing-in-loop", saving=saving_within(0.4, 0.3, 0.35, 0.4, Basis.RULE_OF_THUMB))
    kept, _ = share_out([guess, known], make_analysis(other=0.5))
    assert [round(one.cost_ratio or 0.0, 3) for one in kept] == [0.1, 0.4]


def test_gaps_that_were_told_as_validation_are_no_logging() -> None:
    # Half of the gaps' time lies in bursts of validation: the breakdown counts it there.
    analysis = make_analysis(other=0.1, validation=0.5, lines=LOGGED, fields={"validations": 1, "other_ns": 8e6})
    lead = replace(analysis.lead, breakdown=make_analysis(other=0.1, validation=0.5).lead.breakdown)
    analysis = replace(analysis, ranks=(lead,))
    alone = [rule.judge(analysis) for rule in (frequent_validation, logging_overhead)]
    assert sum(one.cost_ratio or 0.0 for one in alone if isinstance(one, Finding)) > 0.7
    found, _ = find_problems(analysis, (frequent_validation, logging_overhead))
    assert sum(one.cost_ratio or 0.0 for one in found) <= 0.61


def test_restarts_of_workers_are_no_wait_for_input_but_where_nobody_tells_of_them() -> None:
    loader = make_loader(num_workers=2, persistent_workers=False, prefetch_factor=2)
    columns = {
        "iterators": [1 if i % 50 == 0 else 0 for i in range(100)],
        "input_wait_ns": [400_000_000 if i % 50 == 0 else 6_000_000 for i in range(100)],
    }
    found, _ = find_problems(make_analysis(loaders=(loader,), columns=columns))
    by_rule = {one.rule: one for one in found}
    wait, restart = by_rule["input-bound"], by_rule["worker-restart"]
    phase_ns = make_analysis(loaders=(loader,), columns=columns).lead.breakdown.mean_ns("input_wait")
    assert (wait.cost_ns or 0) + (restart.cost_ns or 0) == pytest.approx(phase_ns, rel=0.01)
    assert "num_workers" in fix_of(wait).settings
    assert "num_workers" not in fix_of(restart).settings
