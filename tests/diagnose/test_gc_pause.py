import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Severity
from hotloop.judge.diagnose.rules.gc_pause import gc_pause

from .build_analysis import Told, check, find, fix_of, make_analysis, make_line


def test_an_explicit_collection_is_pointed_at() -> None:
    lines = {"other_ns": (make_line(70, 1.0, "gc.collect()"),)}
    pauses = [0, 0, 0, 0, 40_000_000] * 20
    one = find(
        gc_pause, make_analysis(columns={"gc_ns": pauses, "gc_count": [p // 40_000_000 for p in pauses]}, lines=lines)
    )
    assert one.where[0].line == 70
    assert fix_of(one).settings == {"remove_explicit": True}


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(fields={"gc_ns": 5e6, "gc_count": 1}),
            {"severity": Severity.HIGH, "saving.mid_ratio": pytest.approx(0.25), "evidence.explicit": False},
            id="pauses_that_cost_a_fifth_are_a_high_fault",
        ),
        pytest.param(
            make_analysis(fields={"gc_ns": 60e3, "gc_count": 2}), None, id="the_usual_small_collections_are_nothing"
        ),
        pytest.param(make_analysis(), None, id="a_run_without_collections_has_none"),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(gc_pause, analysis, told)
