from dataclasses import replace

from hotloop.core.analysis import CompileFacts
from hotloop.core.findings import Basis, Finding, Kind, Severity, Skipped
from hotloop.diagnose.rules.uncompiled_model import judge_uncompiled_model

from .build_analysis import find, make_analysis, make_forecast, saving_of


def ops(pointwise_ns: float, matrix_ns: float) -> dict[str, object]:
    return {
        "steps": 3,
        "ops": [
            {"name": "aten::mul_", "shapes": [[8]], "count": 9, "cpu_ns": pointwise_ns, "backward": False},
            {"name": "aten::mm", "shapes": [[8, 8], [8, 8]], "count": 9, "cpu_ns": matrix_ns, "backward": True},
        ],
    }


def test_much_pointwise_time_is_named_as_low() -> None:
    found = find(judge_uncompiled_model, make_analysis(ops=ops(6e6, 4e6)))
    assert found.kind is Kind.OPPORTUNITY
    assert found.severity is Severity.LOW
    assert found.evidence["fusable_ratio"] == 0.6


def test_a_measured_gain_may_be_more_than_low() -> None:
    forecasts = {"compile-model": make_forecast("compile-model", 0.2, 0.3, 0.4)}
    found = find(judge_uncompiled_model, make_analysis(forecasts=forecasts))
    assert found.severity is Severity.HIGH


def test_mostly_matrix_products_are_no_finding() -> None:
    assert judge_uncompiled_model.judge(make_analysis(ops=ops(2e6, 8e6))) is None


def test_a_compiled_model_is_no_finding() -> None:
    assert judge_uncompiled_model.judge(make_analysis(ops=ops(6e6, 4e6), compile=CompileFacts(used=True))) is None


def test_without_operators_it_is_skipped() -> None:
    assert isinstance(judge_uncompiled_model.judge(make_analysis()), Skipped)


def test_a_model_with_recurrent_layers_is_not_judged() -> None:
    """Its layers stay as they are, and their operators look like those that a compiler merges."""
    forecasts = {"compile-model": make_forecast("compile-model", 0.2, 0.3, 0.4)}
    for known in ({"ops": ops(6e6, 2e6)}, {"forecasts": forecasts}):
        found = judge_uncompiled_model.judge(make_analysis(model_is_recurrent=True, **known))
        assert isinstance(found, Skipped)
        assert "LSTM" in found.reason
        assert isinstance(judge_uncompiled_model.judge(make_analysis(model_is_recurrent=False, **known)), Finding)


def test_a_forecast_that_does_not_rule_out_nothing_says_so() -> None:
    unsure = {"compile-model": make_forecast("compile-model", 0.0, 0.3, 0.4)}
    found = find(judge_uncompiled_model, make_analysis(forecasts=unsure))
    assert found.title == "torch.compile may save up to 40% of the step (likely 30%)"


def test_what_was_computed_and_not_timed_says_so() -> None:
    simulated = replace(make_forecast("compile-model", 0.2, 0.3, 0.4), basis=Basis.SIMULATED)
    found = find(judge_uncompiled_model, make_analysis(forecasts={"compile-model": simulated}))
    assert saving_of(found).basis is Basis.SIMULATED


def test_gradients_in_backward_leave_no_promise() -> None:
    forecasts = {"compile-model": make_forecast("compile-model", 0.2, 0.3, 0.4)}
    found = find(
        judge_uncompiled_model, make_analysis(ops=ops(6e6, 4e6) | {"graded_backward": 12}, forecasts=forecasts)
    )
    assert found.severity is Severity.INFO
    assert found.evidence["backward_with_gradients_on"] is True


def test_batches_of_many_lengths_leave_no_promise() -> None:
    forecasts = {"compile-model": make_forecast("compile-model", 0.2, 0.3, 0.4)}
    columns = {"tokens": [100 + i for i in range(100)], "padding_tokens": [0] * 100}
    found = find(judge_uncompiled_model, make_analysis(forecasts=forecasts, columns=columns))
    assert found.severity is Severity.INFO
