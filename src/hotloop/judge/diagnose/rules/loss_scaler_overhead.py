"""Analysis -> loss-scaler-overhead: a GradScaler that the dtype does not need, or that skips steps."""

from __future__ import annotations

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import Basis, Finding, Fix, Numerics, saving_of_removal, saving_within
from hotloop.core.recording import CLOSED_BY_SCALER_SKIP
from hotloop.core.rules import rule
from hotloop.judge.diagnose.measured import MATERIAL_RATIO, is_material_span, known_mean, known_places

MANY_SKIPS_RATIO = 0.02
FEWEST_SKIPS = 5
CALMER_LOW_RATIO = 0.3
CALMER_MID_RATIO = 0.7
"""Rule of thumb: part of the skipped steps that another scale schedule saves."""
HALF = ("float16", "torch.float16", "half")


@rule("loss-scaler-overhead", "a GradScaler is not needed, or skips many steps")
def judge_loss_scaler_overhead(analysis: Analysis) -> Finding | None:
    """
    ## What it does
    Finds a GradScaler that the dtype does not need, and steps that a scaler skipped.

    ## Why it costs
    The scaler multiplies the loss, walks over all gradients to unscale them and look for infinities, and makes the host
    wait for the result before the optimizer steps. A skipped step has computed everything and learned nothing.

    ## How to recognize it
    The scaler's own time is measured. bfloat16 has the same exponent range as float32, so neither type needs a scaler.
    Training on a CPU needs none either, because bfloat16 is the faster type there. Only steps that are skipped after
    the warm-up count, because the scaler always skips a few steps at the start while it searches for its scale.

    ## What to do
    Use bfloat16 autocast without a scaler. If you need float16 and lose steps, lower `init_scale` or `growth_factor`,
    raise `growth_interval`, or clip the gradients after `unscale_`.

    ## When it is wrong
    Hardware without bfloat16 needs float16 and its scaler. On a CPU with float16, small gradients are lost if you drop
    the scaler but keep the dtype.
    """
    rank = analysis.lead
    if not rank.scaler_enabled:
        return None
    dtype = (rank.autocast_dtype or rank.model_dtype or "").removeprefix("torch.")
    needed = dtype in HALF and rank.device_type != "cpu"
    scaler_ratio = min(1.0, (known_mean(rank, "scaler_ns") or 0.0) / rank.step_mean_ns)
    skip_ratio, skips = _skips(rank)
    if skips < FEWEST_SKIPS or skip_ratio < MANY_SKIPS_RATIO:
        skip_ratio = 0.0
    # A skipped step is lost entirely; the scaler's own time is lost in the steps that count.
    cost_ratio = skip_ratio + (0.0 if needed else scaler_ratio * (1.0 - skip_ratio))
    if not (cost_ratio >= MATERIAL_RATIO if skip_ratio else is_material_span(analysis, cost_ratio, "scaler_ns")):
        return None
    own = cost_ratio - skip_ratio
    saving = saving_of_removal(cost_ratio)
    if needed:
        low, mid = CALMER_LOW_RATIO * skip_ratio, CALMER_MID_RATIO * skip_ratio
        saving = saving_within(cost_ratio, low, mid, cost_ratio, Basis.RULE_OF_THUMB)
    what = dtype or "float32"
    title = (
        f"the GradScaler skips {skip_ratio:.0%} of the steps"
        if skip_ratio > own
        else f"the GradScaler takes {own:.1%} of the step, and {what} needs none"
    )
    if what in HALF and skip_ratio <= own:
        title = f"the GradScaler takes {own:.1%} of the step; bfloat16 would need none"
    return Finding(
        title=title,
        phase="optimizer",
        cost_ns=round(cost_ratio * analysis.step_ns),
        cost_ratio=cost_ratio,
        saving=saving,
        evidence={
            "scaler_ratio": round(scaler_ratio, 4),
            "skipped_ratio": round(skip_ratio, 4),
            "skipped_steps": rank.skipped_steps,
            "dtype": what,
            "needed": needed,
        },
        where=known_places(rank.scaler_where),
        fix=Fix(
            technique="calmer-scaler" if needed else "drop-scaler",
            settings={} if needed else {"enabled": False},
            numerics=Numerics.LOSSY if what in HALF or skip_ratio else None,
        ),
        # A skipped step still processed its samples; only the steps that count show the loss.
        unit="step" if skip_ratio > own else "",
    )


def _skips(rank: RankAnalysis) -> tuple[float, int]:
    """Share and number of steady steps that the scaler skipped."""
    column = rank.columns.get("closed_by")
    if column:
        count = sum(1 for value in column if value == CLOSED_BY_SCALER_SKIP)
        return count / len(column), count
    return (rank.skipped_steps / rank.steps if rank.steps else 0.0), rank.skipped_steps
