from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hotloop.core.findings import Basis, Finding, Fix, Kind, Numerics, Safety, saving_within
from hotloop.core.phases import PHASES
from hotloop.judge.diagnose.completion import combine_savings, share_out, state_rule_savings

from .build_analysis import make_analysis

STEP_NS = 20_000_000


def make_finding(
    rule: str,
    phase: str | None,
    cost_ratio: float,
    mid_ratio: float,
    technique: str | None = "act",
    own: dict[str, float] | None = None,
) -> Finding:
    """``own`` is what the finding alone counts of each phase, as shares of the step."""
    fix = None
    if technique is not None:
        fix = Fix(technique=technique, settings={}, safety=Safety.ASK, numerics=Numerics.EXACT)
    return Finding(
        rule=rule,
        kind=Kind.FAULT,
        title=rule,
        phase=phase,
        cost_ns=round(cost_ratio * STEP_NS),
        time_ns=None if own is None else {name: round(share * STEP_NS) for name, share in own.items()},
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
    own = [make_finding(rule, "other", share, share, own={"other": share}) for rule, share in (("a", 0.3), ("b", 0.2))]
    both = combine_savings(own)
    assert both is not None
    assert both.mid_ratio == pytest.approx(0.5)


def test_a_second_forward_and_a_second_backward_are_won_one_beside_the_other() -> None:
    forward = make_finding("redundant-compute", "forward", 0.2, 0.18, "reuse", own={"forward": 0.2})
    backward = make_finding("redundant-compute", "backward", 0.4, 0.36, "sum", own={"backward": 0.4})
    both = combine_savings([forward, backward])
    assert both is not None
    assert (both.low_ratio, both.mid_ratio) == (pytest.approx(0.27), pytest.approx(0.54))
    stated = state_rule_savings([forward, make_finding("a", "other", 0.1, 0.1), backward])
    assert [None if one.rule_saving is None else one.rule_saving.mid_ratio for one in stated] == [
        pytest.approx(0.54),
        None,
        pytest.approx(0.54),
    ]


def test_a_technique_for_all_of_the_computing_wins_its_share_of_what_is_left_of_it() -> None:
    breakdown = make_analysis(forward=0.2, backward=0.4, optimizer=0.0, input_wait=0.4).lead.breakdown
    half = make_finding("a", "forward", 0.3, 0.3, "x", own={"backward": 0.3})
    compiled = make_finding("b", "forward", 0.6, 0.2, "y")
    both = combine_savings([half, compiled], breakdown)
    assert both is not None
    assert both.mid_ratio == pytest.approx(0.4)


def test_a_cost_that_may_lie_anywhere_is_won_of_what_the_others_leave() -> None:
    both = combine_savings([make_finding("a", "input_wait", 0.5, 0.5, "x"), make_finding("b", None, 0.2, 0.2, "y")])
    assert both is not None
    assert both.mid_ratio == pytest.approx(0.6)
    assert both.low_ratio == pytest.approx(0.25)


def test_without_a_fix_there_is_nothing_to_combine() -> None:
    assert combine_savings([]) is None
    assert combine_savings([make_finding("a", "forward", 0.3, 0.3, None)]) is None


PHASE = st.sampled_from(["input_wait", "forward", "backward", "optimizer", "checkpoint", "other", None])
SHARED = st.builds(
    lambda rule, phase, cost, part: make_finding(rule, phase, cost, cost * part),
    st.sampled_from(["a", "b", "c"]),
    PHASE,
    st.floats(0, 1),
    st.floats(0, 1),
)
OWNED = st.builds(
    lambda rule, own, part: make_finding(rule, next(iter(own)), sum(own.values()), sum(own.values()) * part, own=own),
    st.sampled_from(["a", "b", "c"]),
    st.dictionaries(st.sampled_from(PHASES), st.floats(0, 0.3), min_size=1, max_size=3),
    st.floats(0, 1),
)
FINDINGS = st.lists(st.one_of(SHARED, OWNED), max_size=6)
ANALYSIS = make_analysis(
    input_wait=0.2, forward=0.1, backward=0.25, optimizer=0.05, checkpoint=0.1, validation=0.1, other=0.2
)


@given(FINDINGS)
def test_together_they_save_at_least_the_best_and_at_most_what_is_lost(findings: list[Finding]) -> None:
    for breakdown in (None, ANALYSIS.lead.breakdown):
        both = combine_savings(findings, breakdown)
        mids = [one.saving.mid_ratio for one in findings if one.saving is not None]
        if both is None:
            assert not any(mids)
            return
        assert 0 <= both.low_ratio <= both.mid_ratio <= both.high_ratio <= 1
        assert both.mid_ratio >= min(1.0, max(mids)) - 1e-9
        assert both.mid_ratio <= sum(one.cost_ratio or 0.0 for one in findings) + 1e-9


@given(FINDINGS)
def test_the_order_of_the_findings_does_not_matter(findings: list[Finding]) -> None:
    one, other = combine_savings(findings), combine_savings(list(reversed(findings)))
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.mid_ratio == pytest.approx(other.mid_ratio)
        assert one.low_ratio == pytest.approx(other.low_ratio)
        assert one.high_ratio == pytest.approx(other.high_ratio)


@example([make_finding("a", "input_wait", 0.125, 0.1, own={"input_wait": 0.125, "h2d": 1221 / 20e6})])
@given(FINDINGS)
def test_what_is_counted_once_never_exceeds_the_phase_or_the_step(findings: list[Finding]) -> None:
    kept, _ = share_out(findings, ANALYSIS)
    for name in PHASES:
        counted_ns = sum((one.time_ns or {}).get(name, 0) for one in kept)
        assert counted_ns <= ANALYSIS.lead.breakdown.mean_ns(name) + len(kept)
    owned = [one for one in kept if one.time_ns is not None]
    assert sum(one.cost_ratio or 0.0 for one in owned) <= 1.01
    both = combine_savings(owned, ANALYSIS.lead.breakdown)
    if both is not None:
        assert both.mid_ratio == pytest.approx(sum(one.saving.mid_ratio for one in owned if one.saving), abs=1e-6)


@given(FINDINGS)
def test_which_findings_keep_their_time_does_not_depend_on_their_order(findings: list[Finding]) -> None:
    one, other = share_out(findings, ANALYSIS)[0], share_out(list(reversed(findings)), ANALYSIS)[0]

    def total(kept: tuple[Finding, ...]) -> float:
        return sum(sum((finding.time_ns or {}).values()) for finding in kept)

    assert total(one) == pytest.approx(total(other), rel=0.02, abs=0.03 * STEP_NS)
