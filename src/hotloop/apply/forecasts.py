"""Analysis -> what a technique would win, where a probe measured it on this training's own operators."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Saving, saving_within


def measured_forecast(analysis: Analysis, technique: str) -> Saving | None:
    """The probe's forecast for this technique id; None where it was not probed."""
    forecast = analysis.lead.forecasts.get(technique)
    if forecast is None:
        return None
    return saving_within(
        1.0, forecast.saving_low_ratio, forecast.saving_mid_ratio, forecast.saving_high_ratio, Basis.MEASURED
    )
