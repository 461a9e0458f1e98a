from dataclasses import replace

import pytest

from hotloop.core.findings import Basis, Finding, Kind, Saving
from hotloop.core.phases import Excluded
from hotloop.judge.diagnose.verdict import describe_verdict, first_serious
from tests.report.report_samples import input_bound_report, make_step

from .build_analysis import make_analysis, make_excluded


def verdict_of(left_out: Excluded | None) -> str:
    step = replace(make_step(20_000_000), excluded=left_out)
    return describe_verdict((), make_analysis().lead.breakdown, step)


def test_a_run_of_which_most_was_not_judged_is_not_called_sound() -> None:
    left_out = make_excluded(warmup_count=30, warmup_ns=9_000_000_000, steady_ns=1_000_000_000, phase="input_wait")
    assert verdict_of(left_out) == (
        "no serious problem in the steady steps, but they are only 10% of the run: the first 30 steps took 9 s, most "
        "of it input wait"
    )


def test_the_longest_part_is_named() -> None:
    left_out = make_excluded(warmup_count=1, warmup_ns=9_000_000_000, steady_ns=1_000_000_000)
    tail = replace(left_out, warmup_ns=1_000_000_000, tail_ns=8_000_000_000)
    assert verdict_of(tail).endswith("10% of the run: the time after the last step took 8 s")
    detail = replace(left_out, warmup_ns=1, later_count=8, later_ns=8_999_999_999)
    assert "8 steps that were recorded in detail took 9 s, most of it forward" in verdict_of(detail)


@pytest.mark.parametrize("warmup_ns", [None, 900_000_000])
def test_a_run_of_which_most_was_judged_is(warmup_ns: int | None) -> None:
    left_out = warmup_ns and make_excluded(warmup_count=9, warmup_ns=warmup_ns, steady_ns=1_000_000_000)
    assert verdict_of(left_out or None).startswith("no serious problem found")


@pytest.mark.parametrize(
    ("saving", "cost_ratio", "start", "end"),
    [
        ((0.0, 0.19, 0.43), 0.29, "input-bound: ", "a fix may save a lot or nothing"),
        ((0.04, 0.23, 0.32), 0.29, "input-bound: ", "a fix may save a lot or little"),
        ((0.0, 0.04, 0.28), 0.61, "input-bound: ", "no fix is certain to save much"),
        ((0.0, 0.04, 0.43), 0.29, "no serious problem found", ""),
    ],
)
def test_a_large_loss_is_named_though_its_fix_may_save_little(
    saving: tuple[float, float, float], cost_ratio: float, start: str, end: str
) -> None:
    low, mid, high = saving
    forecast = Saving(low_ratio=low, mid_ratio=mid, high_ratio=high, basis=Basis.RULE_OF_THUMB)
    finding = replace(input_bound_report().findings[0], saving=forecast, cost_ratio=cost_ratio)
    told = describe_verdict((finding,), make_analysis().lead.breakdown, make_step(20_000_000))
    assert told.startswith(start)
    assert told.endswith(end)


@pytest.mark.parametrize(("other", "start"), [(0.45, "45% of every step is spent outside"), (0.1, "full-precision: ")])
def test_a_tip_is_not_the_headline_where_much_of_the_step_lies_outside_the_model(other: float, start: str) -> None:
    saving = Saving(low_ratio=0.2, mid_ratio=0.21, high_ratio=0.3, basis=Basis.MEASURED)
    tip = replace(
        input_bound_report().findings[0], rule="full-precision", kind=Kind.OPPORTUNITY, saving=saving, cost_ratio=0.3
    )
    analysis = make_analysis(other=other)
    assert describe_verdict((tip,), analysis.lead.breakdown, make_step(20_000_000)).startswith(start)


def make_finding(rule: str, low_ratio: float, kind: Kind) -> Finding:
    saving = Saving(low_ratio=low_ratio, mid_ratio=0.3, high_ratio=0.4, basis=Basis.MEASURED)
    return Finding(rule=rule, kind=kind, title=rule, saving=saving, evidence={})


def test_a_serious_fault_is_named_before_a_serious_opportunity_that_stands_in_front() -> None:
    faster = make_finding("full-precision", 0.2, Kind.OPPORTUNITY)
    fault = make_finding("gc-pause", 0.06, Kind.FAULT)
    assert first_serious((faster, fault)) is fault
    assert first_serious((faster,)) is faster


def test_what_may_win_nothing_is_not_serious() -> None:
    assert first_serious((make_finding("small-batch", 0.0, Kind.OPPORTUNITY),)) is None
