from dataclasses import replace

import pytest

from hotloop.core.analysis import Analysis, Line
from hotloop.core.findings import Basis, Finding, Kind, Numerics, Safety, Severity, Where
from hotloop.core.phases import Breakdown
from hotloop.judge.diagnose.rules.slow_optimizer import slow_optimizer

from .build_analysis import Told, check, find, fix_of, make_analysis, make_forecast, make_optimizer


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


@pytest.mark.parametrize("share_ratio", [0.1, 0.6, 0.9])
def test_without_a_probe_it_is_at_most_low(share_ratio: float) -> None:
    one = find(slow_optimizer, make_analysis(optimizer=share_ratio, optimizers=(make_optimizer(),)))
    assert one.severity in (Severity.LOW, Severity.INFO)


def test_an_update_that_few_steps_hold_up_is_not_slow() -> None:
    """Seen beside other programs: SGD over two tensors, a mean of 15.7 ms (12 % of the step), a median of 0.86 ms."""
    usual = make_analysis(optimizer=0.4, optimizers=(make_optimizer(),))
    assert isinstance(slow_optimizer.judge(usual), Finding)
    phases = dict(usual.lead.breakdown.phases)
    phases["optimizer"] = replace(phases["optimizer"], median_ns=phases["optimizer"].mean_ns // 30)
    held_up = replace(usual, ranks=(replace(usual.lead, breakdown=Breakdown(phases)),))
    assert slow_optimizer.judge(held_up) is None


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(
                optimizer=0.4,
                optimizers=(make_optimizer(),),
                forecasts={"fused-optimizer": make_forecast("fused-optimizer", 0.2, 0.25, 0.3, fused=True)},
            ),
            {"kind": Kind.OPPORTUNITY, "severity": Severity.HIGH, "where.0.line": 30, "saving.basis": Basis.MEASURED},
            id="a_measured_gain_earns_its_severity",
        ),
        pytest.param(
            make_analysis(
                optimizer=0.4,
                optimizers=(make_optimizer(),),
                forecasts={
                    "fused-optimizer": replace(
                        make_forecast("fused-optimizer", 0.0, 0.11, 0.3, fused=True),
                        basis=Basis.RULE_OF_THUMB,
                        doubt="168 ms, not 0.6",
                    )
                },
            ),
            {"evidence.doubt": "168 ms, not 0.6", "saving.basis": Basis.RULE_OF_THUMB},
            id="a_probe_that_disagrees_with_the_run_is_not_called_measured",
        ),
        pytest.param(
            make_analysis(
                optimizer=0.4,
                optimizers=(replace(make_optimizer(), own_class=True),),
                forecasts={
                    "fused-optimizer": replace(make_forecast("fused-optimizer", 0.1, 0.2, 0.3), basis=Basis.SIMULATED)
                },
            ),
            {"fix.safety": Safety.SHOW, "fix.numerics": Numerics.LOSSY},
            id="a_class_of_the_users_own_has_no_fused_form",
        ),
        pytest.param(
            make_analysis(
                optimizer=0.4,
                optimizers=(make_optimizer(),),
                forecasts={
                    "fused-optimizer": make_forecast("fused-optimizer", 0.0, 0.01, 0.02, fused=True),
                    "foreach-optimizer": make_forecast("foreach-optimizer", 0.1, 0.15, 0.2, foreach=True),
                },
            ),
            {"fix.technique": "foreach-optimizer"},
            id="the_better_of_the_two_forms_is_offered",
        ),
        pytest.param(
            make_analysis(
                optimizer=0.4,
                optimizers=(make_optimizer(),),
                forecasts={"fused-optimizer": make_forecast("fused-optimizer", 0.0, 0.0, 0.01, fused=True)},
            ),
            None,
            id="a_probe_that_measured_no_gain_is_believed",
        ),
        pytest.param(
            make_analysis(optimizer=0.4, optimizers=(make_optimizer(fused=True),)),
            None,
            id="a_fused_optimizer_has_nothing_left_to_fuse",
        ),
        pytest.param(
            make_analysis(optimizer=0.4, optimizers=(make_optimizer(name="Lion"),)),
            None,
            id="an_optimizer_without_a_fused_form_gets_no_guess",
        ),
        pytest.param(
            make_analysis(optimizer=0.02, optimizers=(make_optimizer(),)), None, id="a_small_share_is_nothing"
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(slow_optimizer, analysis, told)
