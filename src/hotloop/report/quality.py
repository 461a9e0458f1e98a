"""A trial's quality -> its plots: what the baseline allows, and the candidate's loss and gradient norm over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hotloop.core.findings import Value
from hotloop.core.tuning import Trial

from .plots import Line, draw_lines

SERIES = (("loss", "loss"), ("gradient_norm", "gradient norm"))
NOTE = (
    "The band is what the baseline and the class of the change allow the mean of each quarter of a trial; it was fixed "
    "before the candidate ran. What lies far beyond is drawn at the edge, and a value that is not finite as a gap."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPlot:
    """``svg`` is safe markup: its texts are escaped."""

    title: str
    status: str
    reason: str
    svg: str


def draw_quality(trial: Trial) -> tuple[QualityPlot, ...]:
    """One plot of the loss and one of the gradient norm, where they were seen on both sides."""
    plots = []
    for key, name in SERIES:
        curve = trial.quality.get(key)
        if not isinstance(curve, Mapping):
            continue
        svg = _draw(trial.id, name, curve)
        if svg:
            status, reason = str(curve.get("status")), str(curve.get("reason"))
            plots.append(QualityPlot(title=f"{trial.id}: {name}", status=status, reason=reason, svg=svg))
    return tuple(plots)


def _draw(trial_id: str, name: str, curve: Mapping[str, Value]) -> str:
    steps = _numbers(curve.get("steps"))
    series = {key: _numbers(curve.get(key)) for key in ("baseline", "low", "high", "candidate")}
    if not steps or any(len(one) != len(steps) for one in series.values()) or None in steps:
        return ""
    left = curve.get("left_at_step")
    told = f"; it left its band at step {left}" if left is not None else ""
    return draw_lines(
        f"{name} of {trial_id} by step, over what the baseline allows{told}",
        [step for step in steps if step is not None],
        [
            Line(name="baseline", style="base", values=series["baseline"]),
            Line(name=trial_id if len(trial_id) < 40 else "candidate", style="own", values=series["candidate"]),
        ],
        x_name="step",
        band=(series["low"], series["high"]),
        mark_x=float(left) if isinstance(left, int | float) else None,
    )


def _numbers(values: Value) -> Sequence[float | None]:
    if not isinstance(values, list | tuple):
        return []
    return [float(value) if isinstance(value, int | float) else None for value in values]
