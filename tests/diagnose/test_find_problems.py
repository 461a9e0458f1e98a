import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Finding, Skipped
from hotloop.core.rules import rule
from hotloop.judge.diagnose import RULES, find_problems

from .build_analysis import make_analysis


@rule("breaks", "a rule with a bug")
def breaks(_: Analysis) -> Finding:
    raise KeyError("gone")


@rule("finds-two", "a rule that finds two things and could not judge a third")
def finds_two(_: Analysis) -> tuple[Finding, ...]:
    return Finding(title="x", evidence={}), Finding(title="x", evidence={})


@rule("cannot-judge", "a rule without evidence")
def cannot_judge(_: Analysis) -> Skipped:
    return Skipped(reason="nothing was recorded")


def test_a_rule_that_fails_is_skipped_by_name_and_loses_nobody_else() -> None:
    findings, skipped = find_problems(make_analysis(), (breaks, finds_two, cannot_judge))
    assert [(one.rule, one.unit, one.next) for one in findings] == [
        ("finds-two", "sample", "hotloop rule finds-two")
    ] * 2
    assert [one.rule for one in skipped] == ["breaks", "cannot-judge"]
    assert "KeyError: 'gone'" in skipped[0].reason


def test_a_healthy_training_has_no_finding_and_no_failing_rule() -> None:
    findings, skipped = find_problems(make_analysis())
    assert findings == ()
    assert not [one for one in skipped if "failed" in one.reason]


@pytest.mark.parametrize("accelerator", [False, True])
def test_every_rule_of_a_device_timeline_says_why_it_cannot_judge_a_recording(accelerator: bool) -> None:
    _, skipped = find_problems(make_analysis(accelerator=accelerator))
    reasons = {one.rule: one.reason for one in skipped}
    for rule_id in ("launch-bound", "host-sync", "pageable-transfer", "allocator-thrash"):
        assert reasons[rule_id].startswith("no device" if accelerator else "training ran on the CPU")
    assert accelerator or {"memory-pressure", "memory-headroom"} <= set(reasons)


def test_the_catalogue_knows_rules_by_their_ids() -> None:
    assert RULES["input-bound"].summary == "the step waits for the next batch"
