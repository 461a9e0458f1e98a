from hotloop.core.analysis import Analysis
from hotloop.core.findings import Finding, Kind, Skipped
from hotloop.core.rules import rule
from hotloop.diagnose import RULES, find_problems

from .build_analysis import make_analysis


def plain_finding(rule_id: str) -> Finding:
    return Finding(
        rule=rule_id,
        kind=Kind.FAULT,
        title="x",
        phase=None,
        cost_ns=None,
        cost_ratio=None,
        saving=None,
        evidence={},
    )


@rule("breaks", "a rule with a bug")
def breaks(_: Analysis) -> Finding:
    raise KeyError("gone")


@rule("finds-two", "a rule that finds two things and could not judge a third")
def finds_two(_: Analysis) -> tuple[Finding, ...]:
    return plain_finding("finds-two"), plain_finding("finds-two")


@rule("cannot-judge", "a rule without evidence")
def cannot_judge(_: Analysis) -> Skipped:
    return Skipped(rule="cannot-judge", reason="nothing was recorded")


def test_a_rule_that_fails_is_skipped_by_name_and_loses_nobody_else() -> None:
    findings, skipped = find_problems(make_analysis(), (breaks, finds_two, cannot_judge))
    assert [one.rule for one in findings] == ["finds-two", "finds-two"]
    assert [one.rule for one in skipped] == ["breaks", "cannot-judge"]
    assert "KeyError" in skipped[0].reason
    assert "gone" in skipped[0].reason


def test_the_order_of_the_rules_is_kept() -> None:
    findings, _ = find_problems(make_analysis(), (finds_two, breaks))
    assert [one.rule for one in findings] == ["finds-two", "finds-two"]


def test_a_healthy_training_has_no_finding_and_no_failing_rule() -> None:
    findings, skipped = find_problems(make_analysis())
    assert findings == ()
    assert not [one for one in skipped if "failed" in one.reason]


def test_every_device_rule_says_that_it_could_not_judge_a_cpu_training() -> None:
    _, skipped = find_problems(make_analysis())
    device_rules = {
        "launch-bound",
        "host-sync",
        "pageable-transfer",
        "memory-pressure",
        "memory-headroom",
        "allocator-thrash",
    }
    assert device_rules <= {one.rule for one in skipped}


def test_the_catalogue_knows_rules_by_their_ids() -> None:
    assert RULES["input-bound"].summary == "the step waits for the next batch"
