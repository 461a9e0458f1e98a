from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.findings import Basis, Finding, Fix, Kind, Numerics, Safety, saving_within
from hotloop.prescribe import combine_savings


def make_finding(
    rule: str, phase: str | None, cost_ratio: float, mid_ratio: float, technique: str | None = "act"
) -> Finding:
    fix = None
    if technique is not None:
        fix = Fix(technique=technique, settings={}, safety=Safety.ASK, numerics=Numerics.EXACT)
    return Finding(
        rule=rule,
        kind=Kind.FAULT,
        title=rule,
        phase=phase,
        cost_ns=None,
        cost_ratio=cost_ratio,
        saving=saving_within(cost_ratio, mid_ratio / 2, mid_ratio, cost_ratio, Basis.SIMULATED),
        evidence={},
        fix=fix,
    )


def test_different_phases_are_disjoint_and_add() -> None:
    both = combine_savings(
        [make_finding("a", "input_wait", 0.4, 0.4, "x"), make_finding("b", "checkpoint", 0.3, 0.3, "y")]
    )
    assert both is not None
    assert both.mid_ratio == pytest.approx(0.7)
    assert both.techniques == ("x", "y")


def test_two_fixes_of_one_phase_win_more_than_the_larger_and_less_than_both() -> None:
    both = combine_savings([make_finding("a", "forward", 0.5, 0.3, "x"), make_finding("b", "backward", 0.4, 0.2, "y")])
    assert both is not None
    # Between the larger alone (0.3) and one after the other (1 - 0.7 x 0.8 = 0.44).
    assert both.mid_ratio == pytest.approx(0.37)


def test_what_one_fix_surely_wins_is_sure_beside_a_larger_guess() -> None:
    perhaps = replace(
        make_finding("a", "forward", 0.5, 0.3, "x"), saving=saving_within(0.5, 0.0, 0.3, 0.5, Basis.MEASURED)
    )
    both = combine_savings([perhaps, make_finding("b", "backward", 0.4, 0.2, "y")])
    assert both is not None
    assert both.low_ratio == pytest.approx(0.1)


def test_two_rules_between_the_phases_have_different_lines() -> None:
    both = combine_savings([make_finding("a", "other", 0.3, 0.3), make_finding("b", "other", 0.2, 0.2)])
    assert both is not None
    assert both.mid_ratio == pytest.approx(0.5)


def test_without_a_fix_there_is_nothing_to_combine() -> None:
    assert combine_savings([]) is None
    assert combine_savings([make_finding("a", "forward", 0.3, 0.3, None)]) is None


PHASE = st.sampled_from(["input_wait", "forward", "backward", "optimizer", "checkpoint", "other", None])
FINDINGS = st.lists(
    st.builds(
        lambda rule, phase, cost, part: make_finding(rule, phase, cost, cost * part),
        st.sampled_from(["a", "b", "c"]),
        PHASE,
        st.floats(0, 1),
        st.floats(0, 1),
    ),
    max_size=6,
)


@given(FINDINGS)
def test_together_they_save_at_least_the_best_and_at_most_what_is_lost(findings: list[Finding]) -> None:
    both = combine_savings(findings)
    mids = [one.saving.mid_ratio for one in findings if one.saving is not None]
    if both is None:
        assert not any(mids)
        return
    assert 0 <= both.low_ratio <= both.mid_ratio <= both.high_ratio <= 1
    assert both.mid_ratio >= max(mids) - 1e-9
    assert both.mid_ratio <= sum(one.cost_ratio or 0.0 for one in findings) + 1e-9


@given(FINDINGS)
def test_the_order_of_the_findings_does_not_matter(findings: list[Finding]) -> None:
    one, other = combine_savings(findings), combine_savings(list(reversed(findings)))
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.mid_ratio == pytest.approx(other.mid_ratio)
