import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Kind, Severity, Skipped
from hotloop.judge.diagnose.rules.full_precision import judge_full_precision

from .build_analysis import Told, check, find, make_analysis, make_forecast


def test_nothing_is_promised_for_batches_of_many_lengths_on_a_cpu() -> None:
    lengths = {"tokens": [100 + i for i in range(100)], "padding_tokens": [5] * 100}
    forecasts = {"bf16-autocast": make_forecast("bf16-autocast", 0.2, 0.3, 0.4)}
    found = find(judge_full_precision, make_analysis(forecasts=forecasts, columns=lengths))
    assert found.severity is Severity.INFO
    same = {"tokens": [100 + i for i in range(100)], "padding_tokens": [100 - i for i in range(100)]}
    found = find(judge_full_precision, make_analysis(forecasts=forecasts, columns=same))
    assert found.severity is Severity.HIGH


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(forecasts={"bf16-autocast": make_forecast("bf16-autocast", 0.2, 0.3, 0.4)}),
            {
                "kind": Kind.OPPORTUNITY,
                "severity": Severity.HIGH,
                "fix.settings": {"dtype": "bfloat16", "device_type": "cpu"},
            },
            id="a_faster_replay_in_bfloat16_is_an_opportunity",
        ),
        pytest.param(
            make_analysis(forecasts={"bf16-autocast": make_forecast("bf16-autocast", 0.0, 0.0, 0.0)}),
            None,
            id="a_slower_replay_is_no_finding",
        ),
        pytest.param(
            make_analysis(
                forecasts={"bf16-autocast": make_forecast("bf16-autocast", 0.2, 0.3, 0.4)}, autocast_dtype="bfloat16"
            ),
            None,
            id="a_model_under_autocast_is_no_finding",
        ),
        pytest.param(make_analysis(model_parameters=50_000_000), Skipped, id="on_a_cpu_without_a_probe_it_is_skipped"),
        pytest.param(
            make_analysis(device_type="cuda", model_parameters=50_000_000),
            {"severity": Severity.LOW},
            id="a_large_model_on_an_accelerator_without_a_probe_is_at_most_low",
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(judge_full_precision, analysis, told)
