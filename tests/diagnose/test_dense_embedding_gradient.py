from typing import Any

import pytest

from hotloop.core.findings import Severity
from hotloop.judge.diagnose.rules.dense_embedding_gradient import (
    LIKELY_PART,
    USUAL_BACKWARD,
    dense_embedding_gradient,
)

from .build_analysis import find, fix_of, make_analysis, saving_of

TABLE = {"dense_table": (500_000, 64), "tokens_per_step": 640.0, "model_parameters": 32_010_000}


def test_a_table_of_which_a_step_uses_a_few_rows_is_told() -> None:
    one = find(dense_embedding_gradient, make_analysis(optimizer=0.7, forward=0.1, backward=0.2, **TABLE))
    assert one.severity is Severity.HIGH
    assert one.cost_ratio == pytest.approx(0.9, rel=0.01)
    assert fix_of(one).technique == "sparse-gradients"


def test_a_forward_that_multiplies_with_all_rows_needs_them() -> None:
    assert dense_embedding_gradient.judge(make_analysis(optimizer=0.4, forward=0.3, backward=0.3, **TABLE)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"dense_table": None},
        {"tokens_per_step": None},
        {"tokens_per_step": 100_000.0},
        {"dense_table": (20_000, 64), "model_parameters": 1_300_000},
        {"model_parameters": 320_000_000},
    ],
)
def test_what_is_no_such_table(changes: dict[str, Any]) -> None:
    assert (
        dense_embedding_gradient.judge(make_analysis(optimizer=0.7, forward=0.1, backward=0.2, **TABLE | changes))
        is None
    )


def test_rows_are_counted_where_no_tokens_are_known() -> None:
    counted = TABLE | {"tokens_per_step": None, "table_rows": 900}
    analysis = make_analysis(optimizer=0.2, forward=0.1, backward=0.7, **counted)
    one = find(dense_embedding_gradient, analysis)
    assert one.evidence["rows_per_step"] == 900
    assert saving_of(one).mid_ratio == pytest.approx(0.2 + LIKELY_PART * (0.7 - USUAL_BACKWARD * 0.1), rel=0.01)
    many = make_analysis(optimizer=0.2, forward=0.1, backward=0.7, **counted | {"table_rows": 100_000})
    assert dense_embedding_gradient.judge(many) is None
