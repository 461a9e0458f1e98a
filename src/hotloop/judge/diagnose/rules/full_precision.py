"""Analysis -> full-precision: float32 arithmetic where a replay shows bfloat16 to be faster."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Fix, Kind, Skipped, Value, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.forecasts import replayed_saving
from hotloop.judge.diagnose.measured import (
    SURE_RATIO,
    batches_vary_in_length,
    is_material,
    known_places,
    train_share,
)

LARGE_MODEL_PARAMETERS = 10_000_000
BOUND_RATIO = 0.2
"""If the host waits this share of the step for the device, the device computes all the time."""
UNSURE_PARTS, BOUND_PARTS = (0.02, 0.2, 0.5), (0.2, 0.5, 0.85)
"""Low, middle and high part of forward and backward that bfloat16 saves on an accelerator. Rule of thumb: matrix units
are two times (after TF32) to ten times as fast, and kernels between them are memory-bound."""


@rule("full-precision", "the model computes in float32 where bfloat16 would be faster", kind=Kind.OPPORTUNITY)
def judge_full_precision(analysis: Analysis) -> Finding | Skipped | None:
    """
    ## What it does
    Forecasts what bfloat16 autocast would save, by replaying this model's own operators in both precisions, with the
    casts that autocast adds.

    ## Why it costs
    Matrix units compute bfloat16 several times faster than float32, and half as many bytes move. Without matrix units,
    or with small matrices, the added casts cost more than bfloat16 saves, so small models get slower.

    ## How to recognize it
    The model's parameters are float32, no autocast was seen, and the replay is faster in bfloat16. Without a replay,
    the forecast for a large float32 model on an accelerator is a rule of thumb. If the host waits for the device
    between phases, the device is the bottleneck, and the forecast has a wide range; otherwise the forecast is small.

    ## What to do
    Run forward and loss under `torch.autocast(device_type, dtype=torch.bfloat16)`. Parameters and optimizer state stay
    float32, and bfloat16 needs no GradScaler.

    ## When it is wrong
    Autocast changes rounding: compare loss curves before you rely on it. Models with badly scaled activations, or
    losses that subtract nearly equal numbers, may need parts in float32. On a CPU, each batch length needs its own
    bfloat16 kernel: the first pass over many lengths can take twice as long, so the low forecast is zero.
    """
    rank = analysis.lead
    if rank.autocast_dtype is None and rank.model_dtype is None:
        return Skipped(reason="the precision of the model is unknown")
    if rank.autocast_dtype is not None or rank.model_dtype not in ("float32", "torch.float32"):
        return None
    evidence: dict[str, Value] = {"model_dtype": "float32", "parameters_count": rank.model_parameters}
    forecast = rank.forecasts.get("bf16-autocast")
    if forecast is not None:
        # On a CPU, every new shape needs new bfloat16 kernels, so a replay of one step's shapes promises nothing.
        is_sure = rank.device_type != "cpu" or not batches_vary_in_length(rank)
        saving = replayed_saving(analysis, forecast, is_sure=is_sure)
        if not is_material(analysis, saving.mid_ratio):
            return None
        evidence |= dict(forecast.evidence) | {"batches_vary_in_length": batches_vary_in_length(rank)}
        title = f"bfloat16 autocast would save about {saving.mid_ratio:.0%} of the step"
        if saving.low_ratio < SURE_RATIO:
            title = (
                f"bfloat16 autocast may save up to {saving.high_ratio:.0%} of the step (likely {saving.mid_ratio:.0%})"
            )
    elif rank.device_type != "cpu" and (rank.model_parameters or 0) >= LARGE_MODEL_PARAMETERS:
        share = train_share(analysis)
        is_bound = rank.device_wait_ratio >= BOUND_RATIO
        low, mid, high = (part * share for part in (BOUND_PARTS if is_bound else UNSURE_PARTS))
        saving = saving_within(share, low, mid, high, Basis.RULE_OF_THUMB)
        title = "a large model computes in float32" + (", and the host waits for the device" if is_bound else "")
        evidence["device_wait_ratio"] = round(rank.device_wait_ratio, 4)
    else:
        return Skipped(reason="bfloat16 was not probed on this model's operators (record with --deep)")
    return Finding(
        title=title,
        phase="forward",
        cost_ns=round(saving.high_ratio * analysis.step_ns),
        cost_ratio=saving.high_ratio,
        saving=saving,
        evidence=evidence,
        where=known_places(*(line.where for line in rank.lines.get("forward_ns", ())[:1])),
        fix=Fix(technique="bf16-autocast", settings={"dtype": "bfloat16", "device_type": rank.device_type}),
    )
