from collections.abc import Sequence

import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Severity
from hotloop.diagnose.rules.redundant_compute import judge_redundant_compute, shared_ratio
from tests.diagnose.build_analysis import make_analysis, make_line, make_optimizer


def judge(analysis: Analysis) -> list[Finding]:
    answers = judge_redundant_compute.judge(analysis)
    assert isinstance(answers, Sequence)
    return list(answers)


def products(forward: int, backward: int) -> dict[str, object]:
    one = {"name": "aten::mm", "shapes": [[8, 4], [4, 4]], "cpu_ns": 1e6}
    return {"ops": [one | {"count": forward, "backward": False}, one | {"count": backward, "backward": True}]}


def test_repeated_backwards_over_one_graph_are_found() -> None:
    [found] = judge(
        make_analysis(
            fields={"backwards": 3, "retained_backwards": 2},
            lines={"backward_ns": (make_line(31, 0.9, "loss.backward()"),)},
        )
    )
    assert found.severity is Severity.HIGH
    assert found.where[0].line == 31
    assert found.saving is not None
    assert found.saving.basis is Basis.RULE_OF_THUMB


def test_recorded_products_tell_how_much_is_shared() -> None:
    shared = make_analysis(fields={"backwards": 2, "retained_backwards": 1}, ops=products(10, 40))
    apart = make_analysis(fields={"backwards": 2, "retained_backwards": 1}, ops=products(10, 22))
    [much], [little] = judge(shared), judge(apart)
    assert much.saving is not None
    assert little.saving is not None
    assert much.saving.basis is Basis.SIMULATED
    assert much.saving.mid_ratio == pytest.approx(much.cost_ratio)
    assert little.saving.mid_ratio < 0.25 * much.saving.mid_ratio


def test_shared_ratio_is_zero_when_the_backwards_walk_apart() -> None:
    assert shared_ratio(products(10, 20), 2.0) == 0.0
    assert shared_ratio({"ops": []}, 2.0) is None


def test_accumulation_without_retained_graphs_is_no_finding() -> None:
    assert judge(make_analysis(fields={"backwards": 4, "micro_batches": 4})) == []


def test_retaining_needlessly_without_a_second_backward_is_no_finding() -> None:
    assert judge(make_analysis(fields={"backwards": 4, "retained_backwards": 4, "micro_batches": 4})) == []


def test_one_loss_per_optimizer_is_no_finding() -> None:
    pair = (make_optimizer(steps=110), make_optimizer(index=1, steps=110))
    assert judge(make_analysis(fields={"backwards": 2, "retained_backwards": 1}, optimizers=pair)) == []


def test_a_second_forward_for_metrics_costs_its_time() -> None:
    [found] = judge(
        make_analysis(
            forward=0.3,
            nograd=0.3,
            fields={"repeated_forwards": 1, "repeated_forward_ns": 6e6, "nograd_forwards": 1},
            lines={"nograd_ns": (make_line(40, 1.0, "model(x)"),)},
        )
    )
    assert found.cost_ratio == pytest.approx(0.3)
    assert found.severity is Severity.HIGH
    assert found.where[0].line == 40


def test_two_passes_that_both_go_backward_are_only_information() -> None:
    [found] = judge(
        make_analysis(forward=0.3, backward=0.6, fields={"repeated_forwards": 1, "repeated_forward_ns": 3e6})
    )
    assert found.severity is Severity.INFO


def test_metrics_stay_sure_beside_passes_that_both_go_backward() -> None:
    fields = {"repeated_forwards": 2, "repeated_forward_ns": 6e6, "nograd_forwards": 1}
    [found] = judge(make_analysis(forward=0.2, nograd=0.1, backward=0.5, fields=fields))
    assert found.saving is not None
    assert found.saving.low_ratio == pytest.approx(0.5 * 0.75 * 0.3)


def test_an_ordinary_step_is_no_finding() -> None:
    assert judge(make_analysis()) == []
