"""Analysis -> the forecasts of rules about the model and its optimizer, for the rules that share time with them."""

from __future__ import annotations

from hotloop.core.analysis import Analysis, Forecast, OptimizerFacts, RankAnalysis
from hotloop.core.findings import Saving, saving_within
from hotloop.judge.diagnose.loading import most_saved_ratio
from hotloop.judge.diagnose.measured import (
    basis_of_replay,
    batches_vary_in_length,
    threshold_ratio,
    train_share,
)

FLOOR_RATIO = 0.03
LEAST_WON_RATIO = 0.005
MOST_OF_MEDIAN = 2.0
"""An update is the same work in every step. If its mean is more than this many times its median, something else (mostly
other programs) held up a few steps, and another form of the update does not save that time."""
DISPATCH_NS = 2_500.0
"""Host time of one operator, however little it computes (measured: 2 to 4 us on current CPUs)."""


def replayed_saving(analysis: Analysis, forecast: Forecast, *, is_sure: bool) -> Saving:
    """The saving in forward and backward, from a replay of their operators; nothing certain if other batches may
    differ."""
    low_ratio, mid_ratio = forecast.saving_low_ratio * is_sure, forecast.saving_mid_ratio
    most_ratio = min(max(train_share(analysis), mid_ratio), most_saved_ratio(analysis.lead))
    basis = basis_of_replay(low_ratio, mid_ratio)
    return saving_within(most_ratio, low_ratio, mid_ratio, forecast.saving_high_ratio, basis)


def compiling_is_unsure(analysis: Analysis) -> bool:
    """Whether the run shows something that makes a compiled model recompile, or fail."""
    ops = analysis.lead.ops
    return batches_vary_in_length(analysis.lead) or bool(ops is not None and ops.get("graded_backward"))


def dispatch_ns(rank: RankAnalysis) -> float:
    """Host time per step that it takes to start the counted operators; 0 if they were not counted."""
    return DISPATCH_NS * count_operators(rank)


def count_operators(rank: RankAnalysis) -> float:
    return sum(float(op["count"]) for op in (rank.ops or {}).get("ops", ()))


def slow_optimizer_of(analysis: Analysis) -> OptimizerFacts | None:
    """The largest optimizer if its phase is a material part of usual steps and it is not fused; else None."""
    lead = analysis.lead
    phase = lead.breakdown.phases["optimizer"]
    usual_ratio = min(1.0, MOST_OF_MEDIAN * phase.median_ns / phase.mean_ns) if phase.mean_ns else 0.0
    share = min(1.0, analysis.share("optimizer") * usual_ratio)
    if not lead.optimizers or share < threshold_ratio(lead, floor_ratio=FLOOR_RATIO, judged_fields=("optimizer_ns",)):
        return None
    optimizer = max(lead.optimizers, key=lambda one: (one.steps or 0) * (one.parameters or 1))
    return None if optimizer.fused else optimizer


def faster_form(analysis: Analysis) -> Forecast | None:
    """The better of the probe's two forms, whether or not it saves time; None if the probe measured neither."""
    known = [analysis.lead.forecasts.get(name) for name in ("fused-optimizer", "foreach-optimizer")]
    return max((one for one in known if one is not None), key=lambda one: one.saving_mid_ratio, default=None)


def forecast_of_faster_optimizer(analysis: Analysis) -> Forecast | None:
    """The forecast of slow-optimizer if a measurement supports it; None if it reports nothing or is a guess."""
    if slow_optimizer_of(analysis) is None:
        return None
    forecast = faster_form(analysis)
    return forecast if forecast is not None and forecast.saving_mid_ratio > LEAST_WON_RATIO else None
