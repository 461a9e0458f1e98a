import pytest

from hotloop.core.analysis import Analysis, CompileFacts
from hotloop.core.findings import Finding, Kind, Severity, Skipped
from hotloop.judge.diagnose.rules.uncompiled_model import judge_uncompiled_model

from .build_analysis import Told, check, make_analysis


def ops(pointwise_ns: float, matrix_ns: float) -> dict[str, object]:
    return {
        "steps": 3,
        "ops": [
            {"name": "aten::mul_", "shapes": [[8]], "count": 9, "cpu_ns": pointwise_ns, "backward": False},
            {"name": "aten::mm", "shapes": [[8, 8], [8, 8]], "count": 9, "cpu_ns": matrix_ns, "backward": True},
        ],
    }


def test_a_model_with_recurrent_layers_is_not_judged() -> None:
    """Its layers stay as they are, and their operators look like those that a compiler merges."""
    found = judge_uncompiled_model.judge(make_analysis(model_is_recurrent=True, ops=ops(6e6, 2e6)))
    assert isinstance(found, Skipped)
    assert "LSTM" in found.reason
    assert isinstance(judge_uncompiled_model.judge(make_analysis(model_is_recurrent=False, ops=ops(6e6, 2e6))), Finding)


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(ops=ops(6e6, 4e6)),
            {"kind": Kind.OPPORTUNITY, "severity": Severity.LOW, "evidence.fusable_ratio": 0.6},
            id="much_pointwise_time_is_named_as_low",
        ),
        pytest.param(make_analysis(ops=ops(2e6, 8e6)), None, id="mostly_matrix_products_are_no_finding"),
        pytest.param(
            make_analysis(ops=ops(6e6, 4e6), compile=CompileFacts(used=True)), None, id="a_compiled_model_is_no_finding"
        ),
        pytest.param(make_analysis(), Skipped, id="without_operators_it_is_skipped"),
        pytest.param(
            make_analysis(ops=ops(6e6, 4e6) | {"graded_backward": 12}),
            {"severity": Severity.INFO, "evidence.backward_with_gradients_on": True},
            id="gradients_in_backward_leave_no_promise",
        ),
        pytest.param(
            make_analysis(
                ops=ops(6e6, 4e6), columns={"tokens": [100 + i for i in range(100)], "padding_tokens": [0] * 100}
            ),
            {"severity": Severity.INFO},
            id="batches_of_many_lengths_leave_no_promise",
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(judge_uncompiled_model, analysis, told)
