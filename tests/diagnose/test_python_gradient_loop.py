import pytest

from hotloop.core.analysis import Forecast
from hotloop.core.findings import Basis, Finding, Severity, Skipped
from hotloop.diagnose.rules.python_gradient_loop import python_gradient_loop

from .build_analysis import find, make_analysis, make_forecast, make_line, make_optimizer, saving_of

CLIPPING = {"after_backward_ns": (make_line(55, 1.0, "total += p.grad.norm().item() ** 2"),)}


def test_clipping_by_hand_is_named_by_its_line() -> None:
    one = find(
        python_gradient_loop,
        make_analysis(after_backward=0.4, lines=CLIPPING, optimizers=(make_optimizer(tensors=200),)),
    )
    assert one.where[0].line == 55
    assert one.severity is Severity.HIGH
    assert saving_of(one).basis is Basis.RULE_OF_THUMB
    assert 0.3 < saving_of(one).mid_ratio < 0.4


def test_what_a_pass_over_the_gradients_takes_anyway_is_not_promised() -> None:
    slow = find(
        python_gradient_loop,
        make_analysis(after_backward=0.2, optimizer=0.6, lines=CLIPPING, optimizers=(make_optimizer(),)),
    )
    assert saving_of(slow).mid_ratio < 0.1


def test_the_probe_is_believed() -> None:
    probe = {"foreach-clipping": make_forecast("foreach-clipping", 0.2, 0.21, 0.22)}
    one = find(python_gradient_loop, make_analysis(after_backward=0.4, lines=CLIPPING, forecasts=probe))
    assert (saving_of(one).mid_ratio, saving_of(one).basis) == (0.21, Basis.MEASURED)


def test_what_the_probe_says_would_remain_is_taken_from_what_this_loop_costs() -> None:
    probe = Forecast(
        technique="foreach-clipping",
        saving_low_ratio=0.01,
        saving_mid_ratio=0.02,
        saving_high_ratio=0.03,
        settings={"foreach": True},
        evidence={"foreach_ns": 1_000_000, "by_hand_ns": 1_400_000},
    )
    analysis = make_analysis(after_backward=0.4, lines=CLIPPING, forecasts={"foreach-clipping": probe})
    one = find(python_gradient_loop, analysis)
    # The probe's 1 ms takes half as long again in a step.
    assert saving_of(one).mid_ratio == pytest.approx(0.4 - 1.5 * 1 / 20)
    assert saving_of(one).basis is Basis.MEASURED


def test_without_sizes_it_is_a_rule_of_thumb() -> None:
    one = find(python_gradient_loop, make_analysis(after_backward=0.4, lines=CLIPPING))
    assert saving_of(one).basis is Basis.RULE_OF_THUMB
    assert saving_of(one).mid_ratio == pytest.approx(0.32)


def test_decay_by_hand_after_the_optimizer_counts() -> None:
    lines = {"other_ns": (make_line(70, 1.0, "for p in model.parameters():"),)}
    one = find(python_gradient_loop, make_analysis(other=0.3, lines=lines))
    assert one.cost_ratio == pytest.approx(0.3)


def test_rows_of_weights_that_are_scaled_in_place_count() -> None:
    lines = {"other_ns": (make_line(71, 1.0, "for row in p.data: row.mul_(1 - 1e-4)"),)}
    assert isinstance(python_gradient_loop.judge(make_analysis(other=0.3, lines=lines)), Finding)


def test_the_librarys_own_clipping_is_no_loop_of_the_user() -> None:
    lines = {"after_backward_ns": (make_line(55, 1.0, "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),)}
    assert python_gradient_loop.judge(make_analysis(after_backward=0.2, lines=lines)) is None


def test_without_samples_the_gap_cannot_be_judged() -> None:
    assert isinstance(python_gradient_loop.judge(make_analysis(after_backward=0.2)), Skipped)


def test_a_short_gap_is_nothing() -> None:
    assert python_gradient_loop.judge(make_analysis(after_backward=0.005, lines=CLIPPING)) is None
