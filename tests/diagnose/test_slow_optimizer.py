from dataclasses import replace

import pytest

from hotloop.core.analysis import Line
from hotloop.core.findings import Basis, Finding, Kind, Numerics, Safety, Severity, Where
from hotloop.core.phases import Breakdown
from hotloop.diagnose.rules.slow_optimizer import slow_optimizer

from .build_analysis import find, fix_of, make_analysis, make_forecast, make_optimizer, saving_of


def test_a_measured_gain_earns_its_severity() -> None:
    probe = {"fused-optimizer": make_forecast("fused-optimizer", 0.2, 0.25, 0.3, fused=True)}
    one = find(slow_optimizer, make_analysis(optimizer=0.4, optimizers=(make_optimizer(),), forecasts=probe))
    assert one.kind is Kind.OPPORTUNITY
    assert one.severity is Severity.HIGH
    assert one.where[0].line == 30
    assert saving_of(one).basis is Basis.MEASURED


def test_a_probe_that_disagrees_with_the_run_is_not_called_measured() -> None:
    doubtful = replace(
        make_forecast("fused-optimizer", 0.0, 0.11, 0.3, fused=True), basis=Basis.RULE_OF_THUMB, doubt="168 ms, not 0.6"
    )
    one = find(
        slow_optimizer,
        make_analysis(optimizer=0.4, optimizers=(make_optimizer(),), forecasts={"fused-optimizer": doubtful}),
    )
    assert one.evidence["doubt"] == "168 ms, not 0.6"
    assert saving_of(one).basis is Basis.RULE_OF_THUMB


def test_a_class_of_the_users_own_has_no_fused_form() -> None:
    probe = {"fused-optimizer": replace(make_forecast("fused-optimizer", 0.1, 0.2, 0.3), basis=Basis.SIMULATED)}
    own = replace(make_optimizer(), own_class=True)
    one = find(slow_optimizer, make_analysis(optimizer=0.4, optimizers=(own,), forecasts=probe))
    assert (fix_of(one).safety, fix_of(one).numerics) == (Safety.SHOW, Numerics.LOSSY)


def test_an_optimizer_that_torch_does_not_have_is_told_by_its_loop() -> None:
    lion = replace(make_optimizer(), own_class=True, name="Lion", foreach=None)
    loop = Line(where=Where(file="t.py", line=9, function="step"), share_ratio=0.9, samples=40, walks_gradients=True)
    one = find(slow_optimizer, make_analysis(optimizer=0.4, optimizers=(lion,), lines={"optimizer_ns": (loop,)}))
    assert one.where == (loop.where,)
    assert one.severity in (Severity.LOW, Severity.INFO)
    assert fix_of(one).safety is Safety.SHOW
    straight = replace(loop, walks_gradients=False)
    assert (
        slow_optimizer.judge(make_analysis(optimizer=0.4, optimizers=(lion,), lines={"optimizer_ns": (straight,)}))
        is None
    )


def test_the_better_of_the_two_forms_is_offered() -> None:
    probe = {
        "fused-optimizer": make_forecast("fused-optimizer", 0.0, 0.01, 0.02, fused=True),
        "foreach-optimizer": make_forecast("foreach-optimizer", 0.1, 0.15, 0.2, foreach=True),
    }
    one = find(slow_optimizer, make_analysis(optimizer=0.4, optimizers=(make_optimizer(),), forecasts=probe))
    assert fix_of(one).technique == "foreach-optimizer"


@pytest.mark.parametrize("share_ratio", [0.1, 0.6, 0.9])
def test_without_a_probe_it_is_at_most_low(share_ratio: float) -> None:
    one = find(slow_optimizer, make_analysis(optimizer=share_ratio, optimizers=(make_optimizer(),)))
    assert one.severity in (Severity.LOW, Severity.INFO)


def test_a_probe_that_measured_no_gain_is_believed() -> None:
    probe = {"fused-optimizer": make_forecast("fused-optimizer", 0.0, 0.0, 0.01, fused=True)}
    assert slow_optimizer.judge(make_analysis(optimizer=0.4, optimizers=(make_optimizer(),), forecasts=probe)) is None


def test_a_fused_optimizer_has_nothing_left_to_fuse() -> None:
    assert slow_optimizer.judge(make_analysis(optimizer=0.4, optimizers=(make_optimizer(fused=True),))) is None


def test_an_optimizer_without_a_fused_form_gets_no_guess() -> None:
    assert slow_optimizer.judge(make_analysis(optimizer=0.4, optimizers=(make_optimizer(name="Lion"),))) is None


def test_a_small_share_is_nothing() -> None:
    assert slow_optimizer.judge(make_analysis(optimizer=0.02, optimizers=(make_optimizer(),))) is None


def test_an_update_that_few_steps_hold_up_is_not_slow() -> None:
    """Seen beside other programs: SGD over two tensors, a mean of 15.7 ms (12 % of the step), a median of 0.86 ms."""
    usual = make_analysis(optimizer=0.4, optimizers=(make_optimizer(),))
    assert isinstance(slow_optimizer.judge(usual), Finding)
    phases = dict(usual.lead.breakdown.phases)
    phases["optimizer"] = replace(phases["optimizer"], median_ns=phases["optimizer"].mean_ns // 30)
    held_up = replace(usual, ranks=(replace(usual.lead, breakdown=Breakdown(phases)),))
    assert slow_optimizer.judge(held_up) is None
