from collections.abc import Sequence

import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import REMOVED_LOW_RATIO, Basis, Finding, Severity
from hotloop.judge.diagnose.rules.redundant_compute import judge_redundant_compute, shared_ratio

from .build_analysis import make_analysis, make_line, make_optimizer, saving_of


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
    assert saving_of(found).basis is Basis.RULE_OF_THUMB


def test_recorded_products_tell_how_much_is_shared() -> None:
    shared = make_analysis(fields={"backwards": 2, "retained_backwards": 1}, ops=products(10, 40))
    apart = make_analysis(fields={"backwards": 2, "retained_backwards": 1}, ops=products(10, 22))
    [much], [little] = judge(shared), judge(apart)
    assert saving_of(much).basis is Basis.SIMULATED
    assert saving_of(much).mid_ratio == pytest.approx(much.cost_ratio)
    assert saving_of(little).mid_ratio < 0.25 * saving_of(much).mid_ratio


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
            fields={"repeated_forwards": 1, "repeated_forward_ns": 6e6, "repeated_nograd_forwards": 1},
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
    fields = {"repeated_forwards": 2, "repeated_forward_ns": 6e6, "repeated_nograd_forwards": 1}
    [found] = judge(make_analysis(forward=0.2, nograd=0.1, backward=0.5, fields=fields))
    assert saving_of(found).low_ratio == pytest.approx(REMOVED_LOW_RATIO * 0.5 * 0.3)


TWO_LOSSES = {"repeated_forwards": 1, "repeated_forward_ns": 2e6, "repeated_backwards": 1, "backwards": 1}
"""The student runs twice on the batch of a step of 20 ms, in two functions with a loss each."""


def test_two_losses_that_each_run_the_model_cost_a_forward_and_a_backward() -> None:
    student = (make_line(64, 0.5, "kd = soft_loss(student, images)"), make_line(65, 0.5, "ce = hard_loss()"))
    teacher = (make_line(63, 1.0, "teacher(images)"),)
    analysis = make_analysis(
        forward=0.2,
        nograd=0.35,
        backward=0.4,
        fields=TWO_LOSSES | {"nograd_forwards": 1},
        lines={"forward_ns": student, "nograd_ns": teacher},
    )
    [found] = judge(analysis)
    assert found.cost_ratio == pytest.approx(0.1 + 0.2)
    assert saving_of(found).mid_ratio == pytest.approx(0.3)
    assert [where.line for where in found.where] == [64, 65]
    assert found.evidence["without_gradients"] is False


@pytest.mark.parametrize("fields", [{"backwards": 2}, {"repeated_backwards": 0}])
def test_a_backward_that_may_be_wanted_alone_is_not_promised(fields: dict[str, float]) -> None:
    [found] = judge(make_analysis(forward=0.2, backward=0.6, fields=TWO_LOSSES | fields))
    assert found.cost_ratio == pytest.approx(0.1)
    assert found.severity is Severity.INFO


def test_a_second_optimizer_has_a_loss_of_its_own() -> None:
    pair = (make_optimizer(steps=110), make_optimizer(index=1, steps=110))
    [found] = judge(make_analysis(forward=0.2, backward=0.6, fields=TWO_LOSSES, optimizers=pair))
    assert found.severity is Severity.INFO


def test_a_recording_that_does_not_tell_repeats_without_gradients_counts_all_of_them() -> None:
    fields = {"repeated_forwards": 1, "repeated_forward_ns": 6e6, "nograd_forwards": 1, "repeated_nograd_forwards": -1}
    [found] = judge(make_analysis(forward=0.3, nograd=0.3, fields=fields))
    assert found.evidence["without_gradients"] is True


def test_an_ordinary_step_is_no_finding() -> None:
    assert judge(make_analysis()) == []
