from hotloop.core.findings import Kind, Severity, Skipped
from hotloop.diagnose.rules.full_precision import judge_full_precision

from .build_analysis import find, fix_of, make_analysis, make_forecast


def test_a_faster_replay_in_bfloat16_is_an_opportunity() -> None:
    forecasts = {"bf16-autocast": make_forecast("bf16-autocast", 0.2, 0.3, 0.4)}
    found = find(judge_full_precision, make_analysis(forecasts=forecasts))
    assert found.kind is Kind.OPPORTUNITY
    assert found.severity is Severity.HIGH
    assert fix_of(found).settings == {"dtype": "bfloat16", "device_type": "cpu"}


def test_nothing_is_promised_for_batches_of_many_lengths_on_a_cpu() -> None:
    lengths = {"tokens": [100 + i for i in range(100)], "padding_tokens": [5] * 100}
    forecasts = {"bf16-autocast": make_forecast("bf16-autocast", 0.2, 0.3, 0.4)}
    found = find(judge_full_precision, make_analysis(forecasts=forecasts, columns=lengths))
    assert found.severity is Severity.INFO
    same = {"tokens": [100 + i for i in range(100)], "padding_tokens": [100 - i for i in range(100)]}
    found = find(judge_full_precision, make_analysis(forecasts=forecasts, columns=same))
    assert found.severity is Severity.HIGH


def test_a_slower_replay_is_no_finding() -> None:
    forecasts = {"bf16-autocast": make_forecast("bf16-autocast", 0.0, 0.0, 0.0)}
    assert judge_full_precision.judge(make_analysis(forecasts=forecasts)) is None


def test_a_model_under_autocast_is_no_finding() -> None:
    forecasts = {"bf16-autocast": make_forecast("bf16-autocast", 0.2, 0.3, 0.4)}
    assert judge_full_precision.judge(make_analysis(forecasts=forecasts, autocast_dtype="bfloat16")) is None


def test_on_a_cpu_without_a_probe_it_is_skipped() -> None:
    assert isinstance(judge_full_precision.judge(make_analysis(model_parameters=50_000_000)), Skipped)


def test_a_large_model_on_an_accelerator_without_a_probe_is_at_most_low() -> None:
    found = find(judge_full_precision, make_analysis(device_type="cuda", model_parameters=50_000_000))
    assert found.severity is Severity.LOW
