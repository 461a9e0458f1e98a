"""Analysis -> small-batch: operators too short for the machine, so that a larger batch costs little more."""

from __future__ import annotations

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import Basis, Finding, Fix, Kind, Numerics, Safety, Saving, Skipped, Value, saving_within
from hotloop.core.rules import rule
from hotloop.diagnose.batch_lines import batch_places
from hotloop.diagnose.comm import exposure_by_cause, needless_buckets
from hotloop.diagnose.compiled import forecast_of_compiled_model
from hotloop.diagnose.loading import most_saved_ratio
from hotloop.diagnose.measured import basis_of_replay, known_count, train_share
from hotloop.diagnose.noise import is_material
from hotloop.diagnose.optimizers import forecast_of_faster_optimizer
from hotloop.diagnose.wording import SURE_RATIO

DISPATCH_NS = 2_500.0
"""Host time that one operator costs however little it computes (measured: 2 to 4 us on current CPUs)."""
LEAST_DISPATCH_RATIO = 0.3
LOW_BUCKETS_RATIO = 0.4
"""Rule of thumb, as in small-buckets: the sure part of what larger buckets save where no probe timed them."""
LINE_UNKNOWN = "unknown: the source does not show which statement makes the batch"
SHARED_EXCHANGE_MID_RATIO = 0.5
"""Part of the exchange's time that the probe's expected saving takes as shared: the middle of none and all."""


@rule("small-batch", "the batch is too small to keep the machine busy")
def judge_small_batch(analysis: Analysis) -> Finding | Skipped | None:
    """
    ## What it does
    Forecasts the time per sample that a larger batch would save, by replaying this model's own operators at both sizes.
    It suggests the batch that saves most of those timed (up to 64 times the present one, as host memory and the probe's
    time allow); if several save the same within two hundredths of the step, the smallest.

    ## Why it costs
    Every operator costs a few microseconds of host time and reads its weights once, whatever the batch. The optimizer
    and the rest of the loop cost the same for one sample as for a thousand. With few samples a step, these fixed costs
    are a large part of the time per sample.

    ## How to tell
    The replayed operators take less than twice as long on twice the batch. The forecast leaves out what a fused or
    foreach optimizer was measured to save (slow-optimizer), what starting operators costs where uncompiled-model
    forecasts a saving, and what larger buckets save between ranks (small-buckets), so no time is counted twice. If
    loader workers make the batches, the forecast does not exceed their pace.

    Without a replay, the number of operators per step times the cost of starting one is compared with the time of
    forward and backward; that alone never raises the finding above low.

    ## What to do
    Raise the batch size while memory allows it. With gradient accumulation, use fewer, larger micro-batches: the
    gradient stays the same up to rounding, and so does training.

    ## When it is wrong
    Without accumulation, a larger batch is a different training: fewer updates per epoch, and the learning rate has to
    be tuned again. If steps wait for input, read that finding first: a larger batch waits longer.
    """
    rank = analysis.lead
    accumulated = known_count(rank, "micro_batches") > 1.5
    forecast = rank.forecasts.get("larger-batch")
    evidence: dict[str, Value] = {
        "samples_per_step": rank.samples_per_step,
        "micro_batches_per_step": known_count(rank, "micro_batches") or None,
    }
    if forecast is not None:
        low, mid, high = forecast.saving_low_ratio, forecast.saving_mid_ratio, forecast.saving_high_ratio
        factor = int(forecast.settings.get("factor") or 2)
        # Part of a step's fixed time that so many times the batch save per sample.
        shared_ratio = 1.0 - 1.0 / factor
        faster = None if accumulated else forecast_of_faster_optimizer(analysis)
        if faster is not None:
            # What a faster form takes off the optimizer's time is no longer there to share.
            low -= faster.saving_high_ratio * shared_ratio
            mid -= faster.saving_mid_ratio * shared_ratio
            high -= faster.saving_low_ratio * shared_ratio
        compiled = forecast_of_compiled_model(analysis)
        if compiled is not None:
            # Nor is what starting operators costs, once one call runs many of them. The computing is left.
            shared = float(compiled.evidence.get("per_call_ratio") or 0.0) * shared_ratio
            low, mid = low - shared, mid - shared
        before = [one for one in (faster, compiled) if one is not None]
        if before:
            evidence["alone_saving_ratio"] = round(forecast.saving_mid_ratio, 4)
            evidence["after_technique"] = " + ".join(one.technique for one in before)
        buckets = None if accumulated else _saved_by_buckets(analysis)
        if buckets is not None:
            low_buckets_ratio, mid_buckets_ratio = buckets
            evidence.setdefault("alone_saving_ratio", round(forecast.saving_mid_ratio, 4))
            mid -= mid_buckets_ratio * SHARED_EXCHANGE_MID_RATIO * shared_ratio
            high -= low_buckets_ratio * shared_ratio
        saving = saving_within(most_saved_ratio(rank), low, mid, high, basis_of_replay(low, mid))
        if not is_material(analysis, saving.mid_ratio):
            return None
        evidence |= dict(forecast.evidence)
        settings = dict(forecast.settings)
        cost_ratio = saving.high_ratio
        sure = saving.low_ratio >= SURE_RATIO
        times = "twice" if factor == 2 else f"{factor} times"
        title = f"{times} the batch {'would' if sure else 'may'} take {saving.mid_ratio:.0%} less time per "
        title += _unit_of(analysis)
        won = ["torch.compile" if one.technique == "compile-model" else "a faster optimizer" for one in before]
        won += ["larger buckets"] * (buckets is not None)
        if won:
            title += f" beyond what {' and '.join(won)} save{'s' if len(won) == 1 and buckets is None else ''}"
        if not sure:
            title += ", or save nothing"
        if not accumulated:
            evidence["convergence"] = "may change: fewer and larger updates per epoch"
    else:
        estimate = _estimate(rank, train_share(analysis))
        if estimate is None:
            return Skipped(rule="small-batch", reason="no probe of a larger batch and no operator counts were recorded")
        cost_ratio, saving, count = estimate
        if cost_ratio < LEAST_DISPATCH_RATIO:
            return None
        evidence["operators_per_step"] = round(count)
        settings = {"factor": 2}
        title = f"launching operators takes about {cost_ratio:.0%} of a step; a larger batch would spread that cost"
    where = batch_places(rank)
    if not where:
        evidence["line"] = LINE_UNKNOWN
    return Finding(
        rule="small-batch",
        kind=Kind.OPPORTUNITY,
        title=title,
        phase="forward",
        cost_ns=round(cost_ratio * analysis.step_ns),
        cost_ratio=cost_ratio,
        saving=saving,
        evidence=evidence,
        where=where,
        fix=Fix(
            technique="larger-micro-batch" if accumulated else "larger-batch",
            settings=settings,
            safety=Safety.ASK,
            numerics=Numerics.REORDERED if accumulated else Numerics.LOSSY,
        ),
        unit=_unit_of(analysis),
        next="hotloop rule small-batch",
    )


def _saved_by_buckets(analysis: Analysis) -> tuple[float, float] | None:
    """Low and expected share of the step that larger buckets save; None where they are no fault or it is unknown."""
    rank = analysis.lead
    if rank.ddp is None or not needless_buckets(rank.ddp):
        return None
    forecast = rank.forecasts.get("ddp-buckets")
    if forecast is not None:
        return forecast.saving_low_ratio, forecast.saving_mid_ratio
    exposure = exposure_by_cause(analysis)
    if exposure is None:
        return None
    mid_ratio = exposure.buckets_ns / analysis.step_ns
    return LOW_BUCKETS_RATIO * mid_ratio, mid_ratio


def _unit_of(analysis: Analysis) -> str:
    """A larger batch makes no step shorter: where samples could not be counted, the saving is of each of them still."""
    return "sample" if analysis.unit == "step" else analysis.unit


def _estimate(rank: RankAnalysis, train_ratio: float) -> tuple[float, Saving, float] | None:
    """Share of the step that starts operators, what half of it would save, and the number of operators."""
    if rank.ops is None or not rank.ops.get("ops"):
        return None
    count = sum(float(op["count"]) for op in rank.ops["ops"])
    cost_ratio = min(train_ratio, count * DISPATCH_NS / rank.step_mean_ns)
    # Never above low: this says nothing of how the computing itself grows with the batch.
    saving = saving_within(cost_ratio, min(0.04, 0.1 * cost_ratio), 0.25 * cost_ratio, 0.5 * cost_ratio, _THUMB)
    return cost_ratio, saving, count


_THUMB = Basis.RULE_OF_THUMB
