from dataclasses import replace

from hotloop.core.analysis import CompileFacts
from hotloop.core.findings import Basis, Finding, Kind, Severity, Skipped
from hotloop.diagnose.rules.uncompiled_model import judge_uncompiled_model
from tests.diagnose.build_analysis import make_analysis, make_forecast


def ops(pointwise_ns: float, matrix_ns: float) -> dict[str, object]:
    return {
        "steps": 3,
        "ops": [
            {"name": "aten::mul_", "shapes": [[8]], "count": 9, "cpu_ns": pointwise_ns, "backward": False},
            {"name": "aten::mm", "shapes": [[8, 8], [8, 8]], "count": 9, "cpu_ns": matrix_ns, "backward": True},
        ],
    }


def test_much_pointwise_time_is_named_as_low() -> None:
    found = judge_uncompiled_model.judge(make_analysis(ops=ops(6e6, 4e6)))
    assert isinstance(found, Finding)
    assert found.kind is Kind.OPPORTUNITY
    assert found.severity is Severity.LOW
    assert found.evidence["fusable_ratio"] == 0.6


def test_a_measured_gain_may_be_more_than_low() -> None:
    forecasts = {"compile-model": make_forecast("compile-model", 0.2, 0.3, 0.4)}
    found = judge_uncompiled_model.judge(make_analysis(forecasts=forecasts))
    assert isinstance(found, Finding)
    assert found.severity is Severity.HIGH


def test_mostly_matrix_products_are_no_finding() -> None:
    assert judge_uncompiled_model.judge(make_analysis(ops=ops(2e6, 8e6))) is None


def test_a_compiled_model_is_no_finding() -> None:
    assert judge_uncompiled_model.judge(make_analysis(ops=ops(6e6, 4e6), compile=CompileFacts(used=True))) is None


def test_without_operators_it_is_skipped() -> None:
    assert isinstance(judge_uncompiled_model.judge(make_analysis()), Skipped)


def test_a_recurrent_model_is_only_told_of_it() -> None:
    mixed = ops(6e6, 2e6)
    mixed["ops"] = [
        *mixed["ops"],  # type: ignore[misc]
        {"name": "aten::lstm", "shapes": [[8, 8, 8]], "count": 1, "cpu_ns": 2e6, "backward": False},
    ]
    forecasts = {"compile-model": make_forecast("compile-model", 0.2, 0.3, 0.4)}
    for found in (
        judge_uncompiled_model.judge(make_analysis(ops=mixed)),
        judge_uncompiled_model.judge(make_analysis(ops=mixed, forecasts=forecasts)),
    ):
        assert isinstance(found, Finding)
        assert found.severity is Severity.INFO
        assert "does not compile the LSTM or GRU layers (20% of the operator time)" in found.title


def test_what_was_computed_and_not_timed_says_so() -> None:
    simulated = replace(make_forecast("compile-model", 0.2, 0.3, 0.4), basis=Basis.SIMULATED)
    found = judge_uncompiled_model.judge(make_analysis(forecasts={"compile-model": simulated}))
    assert isinstance(found, Finding)
    assert found.saving is not None
    assert found.saving.basis is Basis.SIMULATED


def test_gradients_in_backward_leave_no_promise() -> None:
    forecasts = {"compile-model": make_forecast("compile-model", 0.2, 0.3, 0.4)}
    found = judge_uncompiled_model.judge(
        make_analysis(ops=ops(6e6, 4e6) | {"graded_backward": 12}, forecasts=forecasts)
    )
    assert isinstance(found, Finding)
    assert found.severity is Severity.INFO
    assert found.evidence["backward_with_gradients_on"] is True


def test_batches_of_many_lengths_leave_no_promise() -> None:
    forecasts = {"compile-model": make_forecast("compile-model", 0.2, 0.3, 0.4)}
    columns = {"tokens": [100 + i for i in range(100)], "padding_tokens": [0] * 100}
    found = judge_uncompiled_model.judge(make_analysis(forecasts=forecasts, columns=columns))
    assert isinstance(found, Finding)
    assert found.severity is Severity.INFO
