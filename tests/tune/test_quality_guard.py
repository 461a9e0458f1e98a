"""Losses and gradient norms judged together, and the curves that the report shows of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from hotloop.change.apply import TECHNIQUES
from hotloop.change.tune.quality import (
    MOST_POINTS,
    GuardBands,
    excuse_norms,
    judge_measured,
    judge_norms,
    make_bands,
    make_norm_bands,
)
from hotloop.core.findings import Numerics
from hotloop.core.measurement import Measurement
from tests.tune.records import applied, measurement

LOSSES = tuple(2.0 * math.exp(-i / 50) for i in range(160))
NORMS = tuple((row, 1.0 + 0.1 * math.sin(row)) for row in (*range(8), *range(16, 160, 16)))
BANDS = GuardBands(loss=make_bands([LOSSES, LOSSES]), norm=make_norm_bands([NORMS, NORMS]))
SAME = measurement(1.0, losses=LOSSES, norms=NORMS)


def scaled(ratio: float) -> tuple[tuple[int, float], ...]:
    return tuple((row, ratio * x) for row, x in NORMS)


def test_gradients_of_another_size_are_rejected_though_the_loss_agrees() -> None:
    """AdamW trains alike on twice the gradient: the loss alone would pass."""
    found = judge_measured(BANDS, replace(SAME, norms=scaled(2.0)), Numerics.LOSSY)
    assert found.quality.status == "rejected"
    assert found.summary["loss"]["status"] == "passed"  # type: ignore[index, call-overload]


def test_gradients_that_are_sent_later_by_design_are_judged_by_their_loss() -> None:
    def sent(method: str, status: str = "applied") -> Measurement:
        one = applied("compress-gradients", status, numerics="lossy", values={"method": method})
        return excuse_norms(replace(SAME, norms=scaled(0.5), applied=(one,)), TECHNIQUES)

    found = judge_measured(BANDS, sent("topk"), Numerics.LOSSY)
    assert found.quality.status == "passed"
    assert "in later steps" in str(found.summary["gradient_norm"])
    assert judge_measured(BANDS, sent("bf16"), Numerics.LOSSY).quality.status == "rejected"
    assert judge_measured(BANDS, sent("topk", "failed"), Numerics.LOSSY).quality.status == "rejected"
    worse = replace(sent("topk"), losses=tuple(2 * x for x in LOSSES))
    assert judge_measured(BANDS, worse, Numerics.LOSSY).quality.status == "rejected"


@pytest.mark.parametrize("numerics", list(Numerics))
def test_equal_norms_pass_and_a_rounding_error_does_too(numerics: Numerics) -> None:
    assert judge_norms(BANDS.norm, NORMS, numerics).reason == f"{len(NORMS)} gradient norms are equal bit for bit"
    assert judge_norms(BANDS.norm, scaled(1 + 1e-6), numerics).status == "passed"


def test_where_the_norm_leaves_its_band() -> None:
    late = tuple((row, x if row < 48 else 1.5 * x) for row, x in NORMS)
    found = judge_norms(BANDS.norm, late, Numerics.LOSSY)
    assert (found.status, found.left_at_step) == ("rejected", 49)
    assert judge_norms(BANDS.norm, late, Numerics.EXACT).left_at_step == 49


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_norms_that_are_not_finite_are_told_apart(bad: float) -> None:
    broken = tuple((row, bad if row == 32 else x) for row, x in NORMS)
    found = judge_measured(BANDS, replace(SAME, norms=broken), Numerics.REORDERED)
    assert found.quality.left_at_step == 33
    json.dumps(found.summary, allow_nan=False)


def test_rows_that_a_scaler_skipped_in_the_baseline_are_left_out() -> None:
    skipped = tuple((row, None if row < 2 else x) for row, x in NORMS)
    bands = make_norm_bands([skipped, NORMS])
    assert bands.steps[0] == 3
    assert judge_norms(bands, skipped, Numerics.EXACT).status == "passed"


def test_unknown_norms_leave_the_judgement_to_the_loss() -> None:
    found = judge_measured(BANDS, replace(SAME, norms=(), norms_unseen="sharded"), Numerics.EXACT)
    assert found.quality.status == "passed"
    assert found.summary["gradient_norm"] == {"status": "unknown", "reason": "sharded"}


def test_a_loss_that_is_not_finite_diverged_also_where_the_bands_are_unknown() -> None:
    """Two processes of a baseline that does not repeat give no bands, but they are finite."""
    bands = make_bands([LOSSES, [*LOSSES[:-1], 9.0]])
    assert "is not reproducible" in bands.unknown
    found = judge_measured(
        replace(BANDS, loss=bands), replace(SAME, losses=(*LOSSES[:5], math.nan, *LOSSES[6:])), Numerics.LOSSY
    )
    assert (found.quality.status, found.quality.left_at_step) == ("rejected", 6)
    ill = make_bands([[math.nan] * 20, [math.nan] * 20])
    assert judge_measured(replace(BANDS, loss=ill), SAME, Numerics.LOSSY).quality.status == "unknown"


def test_the_curves_are_bounded_and_hold_the_step_where_the_band_was_left() -> None:
    losses = tuple(x if i < 101 else x + 1.0 for i, x in enumerate(LOSSES))
    summary = judge_measured(BANDS, replace(SAME, losses=losses), Numerics.LOSSY).summary
    curve = summary["loss"]
    assert isinstance(curve, dict)
    assert summary["left_at_step"] == curve["left_at_step"] == 102
    assert {len(curve[name]) for name in ("steps", "baseline", "low", "high", "candidate")} <= {  # type: ignore[arg-type]
        MOST_POINTS,
        MOST_POINTS + 1,
    }
    assert 102 in curve["steps"]  # type: ignore[operator]
    assert len(json.dumps(summary)) < 12_000
