import pytest

from hotloop.core.findings import Basis, Finding, Kind, Severity
from hotloop.diagnose.rules.slow_optimizer import slow_optimizer

from .build_analysis import make_analysis, make_forecast, make_optimizer


def test_a_measured_gain_earns_its_severity() -> None:
    probe = {"fused-optimizer": make_forecast("fused-optimizer", 0.2, 0.25, 0.3, fused=True)}
    one = slow_optimizer.judge(make_analysis(optimizer=0.4, optimizers=(make_optimizer(),), forecasts=probe))
    assert isinstance(one, Finding)
    assert one.kind is Kind.OPPORTUNITY
    assert one.severity is Severity.HIGH
    assert one.title == (
        "AdamW.step() over 30 tensors takes 8 ms (40%) of every step; its fused form was measured to save 25%"
    )
    assert one.where[0].line == 30
    assert one.saving is not None
    assert one.saving.basis is Basis.MEASURED


def test_the_better_of_the_two_forms_is_offered() -> None:
    probe = {
        "fused-optimizer": make_forecast("fused-optimizer", 0.0, 0.01, 0.02, fused=True),
        "foreach-optimizer": make_forecast("foreach-optimizer", 0.1, 0.15, 0.2, foreach=True),
    }
    one = slow_optimizer.judge(make_analysis(optimizer=0.4, optimizers=(make_optimizer(),), forecasts=probe))
    assert isinstance(one, Finding)
    assert one.fix is not None
    assert one.fix.technique == "foreach-optimizer"


@pytest.mark.parametrize("share_ratio", [0.1, 0.6, 0.9])
def test_without_a_probe_it_is_at_most_low(share_ratio: float) -> None:
    one = slow_optimizer.judge(make_analysis(optimizer=share_ratio, optimizers=(make_optimizer(),)))
    assert isinstance(one, Finding)
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
