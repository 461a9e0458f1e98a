import pytest

from hotloop.core.findings import Severity
from hotloop.diagnose.rules.gc_pause import gc_pause

from .build_analysis import find, fix_of, make_analysis, make_line, saving_of


def test_pauses_that_cost_a_fifth_are_a_high_fault() -> None:
    one = find(gc_pause, make_analysis(fields={"gc_ns": 5e6, "gc_count": 1}))
    assert one.severity is Severity.HIGH
    assert saving_of(one).mid_ratio == pytest.approx(0.25)
    assert one.evidence["explicit"] is False


def test_an_explicit_collection_is_pointed_at() -> None:
    lines = {"other_ns": (make_line(70, 1.0, "gc.collect()"),)}
    pauses = [0, 0, 0, 0, 40_000_000] * 20
    one = find(
        gc_pause, make_analysis(columns={"gc_ns": pauses, "gc_count": [p // 40_000_000 for p in pauses]}, lines=lines)
    )
    assert one.where[0].line == 70
    assert fix_of(one).settings == {"remove_explicit": True}


def test_the_usual_small_collections_are_nothing() -> None:
    assert gc_pause.judge(make_analysis(fields={"gc_ns": 60e3, "gc_count": 2})) is None


def test_a_run_without_collections_has_none() -> None:
    assert gc_pause.judge(make_analysis()) is None
