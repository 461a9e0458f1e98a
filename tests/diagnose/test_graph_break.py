from dataclasses import replace

import pytest

from hotloop.core.analysis import Analysis, CompileFacts
from hotloop.core.findings import Basis, Severity, Where
from hotloop.judge.diagnose.rules.graph_break import LEAST_BREAK_NS, judge_graph_break

from .build_analysis import Told, check, find, make_analysis, saving_of

PLACE = Where(file="model.py", line=7, function="forward")
BROKEN = CompileFacts(used=True, graphs=3, graph_breaks=2, break_reasons=(("call to print", PLACE),))


def test_breaks_in_a_short_step_weigh_more() -> None:
    found = find(judge_graph_break, make_analysis(compile=BROKEN, step_ns=0.5e6))
    assert found.severity is not Severity.INFO


def test_time_between_the_graphs_of_forward_and_backward_is_the_cost() -> None:
    timed = replace(
        BROKEN,
        graph_calls_per_forward=4.0,
        graph_ns_per_forward=2e6,
        graph_backward_calls_per_forward=4.0,
        graph_backward_ns_per_forward=5e6,
    )
    # 6 ms of forward and 9 ms of backward, of which 4 and 4 lie between the graphs; one graph would keep a quarter.
    found = find(judge_graph_break, make_analysis(compile=timed, forward=0.3, backward=0.45))
    assert found.cost_ns == pytest.approx(0.75 * 8e6, rel=0.01)
    # Nobody knows how much of it one graph takes away: from the fixed cost of the breaks to all of it.
    assert saving_of(found).basis is Basis.RULE_OF_THUMB
    assert saving_of(found).low_ratio < 0.05
    assert saving_of(found).high_ratio == pytest.approx(0.3, rel=0.01)


@pytest.mark.parametrize(("graphs", "run_count", "breaks"), [(3, 13.0, 12), (9, 2.0, 1)])
def test_the_low_end_counts_the_breaks_that_a_forward_runs_into(graphs: int, run_count: float, breaks: int) -> None:
    """One place in a loop over twelve layers; nine graphs of other shapes, of which a forward runs two."""
    seen = replace(BROKEN, graphs=graphs, graph_breaks=1, graph_calls_per_forward=run_count, graph_ns_per_forward=1e6)
    found = find(judge_graph_break, make_analysis(compile=seen, forward=0.3, backward=0.45, step_ns=20e6))
    assert saving_of(found).low_ratio == pytest.approx(breaks * LEAST_BREAK_NS / 20e6)


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(compile=BROKEN),
            {"evidence.reasons": ["call to print"], "where": (PLACE,), "saving.basis": Basis.RULE_OF_THUMB},
            id="breaks_are_named_with_reason_and_line",
        ),
        pytest.param(
            make_analysis(compile=BROKEN, step_ns=500e6),
            {"severity": Severity.INFO},
            id="breaks_in_a_long_step_are_only_information",
        ),
        pytest.param(
            make_analysis(compile=CompileFacts(used=True, graphs=1, graph_breaks=0)),
            None,
            id="one_whole_graph_is_no_finding",
        ),
        pytest.param(make_analysis(), None, id="an_eager_model_is_no_finding"),
        pytest.param(
            make_analysis(
                compile=replace(
                    BROKEN, graph_calls_per_forward=4.0, graph_ns_per_forward=2e6, graph_backward_calls_per_forward=0.0
                ),
                forward=0.3,
                backward=0.45,
            ),
            {"cost_ns": pytest.approx(0.75 * 4e6, rel=0.01)},
            id="backwards_that_run_on_another_thread_add_nothing",
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(judge_graph_break, analysis, told)
