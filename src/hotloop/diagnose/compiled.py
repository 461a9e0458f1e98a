"""Analysis -> what compiling the model is forecast to win, where that is worth a finding."""

from __future__ import annotations

from hotloop.core.analysis import Analysis, Forecast
from hotloop.core.findings import Severity, saving_within, severity_of
from hotloop.diagnose.measured import batches_vary_in_length
from hotloop.diagnose.thresholds import is_material


def compiling_is_unsure(analysis: Analysis) -> bool:
    """Whether the run shows something at which a compiled model is made anew, or fails."""
    ops = analysis.lead.ops
    return batches_vary_in_length(analysis.lead) or bool(ops is not None and ops.get("graded_backward"))


def forecast_of_compiled_model(analysis: Analysis) -> Forecast | None:
    """What uncompiled-model promises with a probe behind it; None when it promises nothing or guesses."""
    forecast = analysis.lead.forecasts.get("compile-model")
    if forecast is None or analysis.lead.compile.used or analysis.lead.model_is_recurrent:
        return None
    if compiling_is_unsure(analysis):
        return None
    saving = saving_within(
        1.0, forecast.saving_low_ratio, forecast.saving_mid_ratio, forecast.saving_high_ratio, forecast.basis
    )
    if severity_of(saving) is Severity.INFO or not is_material(analysis, saving.mid_ratio):
        return None
    return forecast
