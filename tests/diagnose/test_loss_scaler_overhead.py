import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Severity, Where
from hotloop.core.recording import CLOSED_BY_OPTIMIZER, CLOSED_BY_SCALER_SKIP
from hotloop.judge.diagnose.rules.loss_scaler_overhead import judge_loss_scaler_overhead

from .build_analysis import Told, check, make_analysis

PLACE = Where(file="train.py", line=18, function="main")


def closed_by(skips: int) -> dict[str, list[int]]:
    return {"closed_by": [CLOSED_BY_SCALER_SKIP] * skips + [CLOSED_BY_OPTIMIZER] * (100 - skips)}


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(
                scaler_enabled=True, scaler_where=PLACE, autocast_dtype="bfloat16", fields={"scaler_ns": 2e6}
            ),
            {
                "cost_ratio": pytest.approx(0.1),
                "severity": Severity.MEDIUM,
                "where": (PLACE,),
                "fix.technique": "drop-scaler",
            },
            id="a_scaler_with_bfloat16_costs_its_own_time",
        ),
        pytest.param(
            make_analysis(scaler_enabled=True, autocast_dtype="float16", device_type="cuda", columns=closed_by(30)),
            {"cost_ratio": pytest.approx(0.3), "unit": "step", "fix.technique": "calmer-scaler"},
            id="steps_lost_to_skips_cost_their_share",
        ),
        pytest.param(
            make_analysis(scaler_enabled=True, autocast_dtype="float16", device_type="cuda", fields={"scaler_ns": 2e6}),
            None,
            id="a_scaler_that_float16_needs_is_no_finding",
        ),
        pytest.param(
            make_analysis(scaler_enabled=True, autocast_dtype="float16", device_type="cuda", columns=closed_by(3)),
            None,
            id="a_few_skips_at_the_start_are_no_finding",
        ),
        pytest.param(
            make_analysis(scaler_enabled=False, fields={"scaler_ns": 2e6}), None, id="a_disabled_scaler_is_no_finding"
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(judge_loss_scaler_overhead, analysis, told)
