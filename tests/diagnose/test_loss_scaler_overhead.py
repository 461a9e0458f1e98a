import pytest

from hotloop.core.findings import Severity, Where
from hotloop.core.recording import CLOSED_BY_OPTIMIZER, CLOSED_BY_SCALER_SKIP
from hotloop.diagnose.rules.loss_scaler_overhead import judge_loss_scaler_overhead

from .build_analysis import find, fix_of, make_analysis

PLACE = Where(file="train.py", line=18, function="main")


def closed_by(skips: int) -> dict[str, list[int]]:
    return {"closed_by": [CLOSED_BY_SCALER_SKIP] * skips + [CLOSED_BY_OPTIMIZER] * (100 - skips)}


def test_a_scaler_with_bfloat16_costs_its_own_time() -> None:
    found = find(
        judge_loss_scaler_overhead,
        make_analysis(scaler_enabled=True, scaler_where=PLACE, autocast_dtype="bfloat16", fields={"scaler_ns": 2e6}),
    )
    assert found.cost_ratio == pytest.approx(0.1)
    assert found.severity is Severity.MEDIUM
    assert found.where == (PLACE,)
    assert fix_of(found).technique == "drop-scaler"


def test_steps_lost_to_skips_cost_their_share() -> None:
    found = find(
        judge_loss_scaler_overhead,
        make_analysis(scaler_enabled=True, autocast_dtype="float16", device_type="cuda", columns=closed_by(30)),
    )
    assert found.cost_ratio == pytest.approx(0.3)
    assert found.unit == "step"
    assert fix_of(found).technique == "calmer-scaler"


def test_a_scaler_that_float16_needs_is_no_finding() -> None:
    needed = make_analysis(scaler_enabled=True, autocast_dtype="float16", device_type="cuda", fields={"scaler_ns": 2e6})
    assert judge_loss_scaler_overhead.judge(needed) is None


def test_a_few_skips_at_the_start_are_no_finding() -> None:
    few = make_analysis(scaler_enabled=True, autocast_dtype="float16", device_type="cuda", columns=closed_by(3))
    assert judge_loss_scaler_overhead.judge(few) is None


def test_a_disabled_scaler_is_no_finding() -> None:
    assert judge_loss_scaler_overhead.judge(make_analysis(scaler_enabled=False, fields={"scaler_ns": 2e6})) is None
