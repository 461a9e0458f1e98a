from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.findings import Basis, Finding, Kind, Saving, Severity
from hotloop.judge.diagnose.completion import rank_findings


def make_finding(
    rule: str,
    mid_ratio: float | None,
    basis: Basis = Basis.SIMULATED,
    kind: Kind = Kind.FAULT,
    severity_override: Severity | None = None,
) -> Finding:
    saving = None
    if mid_ratio is not None:
        saving = Saving(low_ratio=mid_ratio / 2, mid_ratio=mid_ratio, high_ratio=mid_ratio, basis=basis)
    return Finding(
        rule=rule,
        kind=kind,
        title=rule,
        phase=None,
        cost_ns=None,
        cost_ratio=None,
        saving=saving,
        evidence={},
        severity_override=severity_override,
    )


def order_of(*findings: Finding) -> list[str]:
    return [one.rule for one in rank_findings(findings)]


def test_the_larger_saving_stands_first() -> None:
    assert order_of(make_finding("gc-pause", 0.1), make_finding("input-bound", 0.4)) == ["input-bound", "gc-pause"]


def test_a_guess_outranks_what_was_simulated_only_if_its_low_end_alone_is_more() -> None:
    simulated, larger = make_finding("gc-pause", 0.06), make_finding("input-bound", 0.6)
    guess = make_finding("pageable-transfer", 0.22, Basis.RULE_OF_THUMB)  # from 0.11 on
    assert order_of(larger, guess, simulated) == ["input-bound", "pageable-transfer", "gc-pause"]
    unsure = replace(guess, saving=Saving(low_ratio=0.02, mid_ratio=0.3, high_ratio=0.9, basis=Basis.RULE_OF_THUMB))
    assert order_of(unsure, simulated) == ["gc-pause", "pageable-transfer"]
    tip = replace(guess, kind=Kind.OPPORTUNITY)
    assert order_of(tip, simulated) == ["gc-pause", "pageable-transfer"]


def test_a_measured_saving_outranks_a_simulated_one_of_nearly_the_same_size() -> None:
    measured = make_finding("small-batch", 0.29, Basis.MEASURED, Kind.OPPORTUNITY)
    assert order_of(make_finding("input-bound", 0.3), measured) == ["small-batch", "input-bound"]


def test_memory_that_is_soon_full_stands_among_the_large_savings() -> None:
    leak = make_finding("memory-growth", None, severity_override=Severity.HIGH)
    slow = make_finding("input-bound", 0.6)
    assert order_of(make_finding("gc-pause", 0.2), leak, slow) == ["input-bound", "memory-growth", "gc-pause"]


def test_findings_without_a_saving_come_last() -> None:
    nothing = make_finding("memory-headroom", None, kind=Kind.OPPORTUNITY)
    assert order_of(nothing, make_finding("gc-pause", 0.01))[-1] == "memory-headroom"


@given(st.permutations([("a", 0.3), ("b", 0.3), ("c", 0.1), ("d", 0.0)]))
def test_the_order_does_not_depend_on_the_order_given(pairs: list[tuple[str, float]]) -> None:
    assert order_of(*(make_finding(rule, mid) for rule, mid in pairs)) == ["a", "b", "c", "d"]


def test_a_finding_of_severity_info_stands_behind_a_low_one_that_is_expected_to_save_less() -> None:
    unsure = replace(
        make_finding("gc-pause", 0.3), saving=Saving(low_ratio=0, mid_ratio=0.3, high_ratio=0.4, basis=Basis.SIMULATED)
    )
    assert order_of(unsure, make_finding("input-bound", 0.04)) == ["input-bound", "gc-pause"]
