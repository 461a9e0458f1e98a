"""Analysis -> small-batch: operators are too short for the machine, so a larger batch costs little more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hotloop.core.analysis import Analysis, Forecast
from hotloop.core.findings import Basis, Finding, Fix, Kind, Saving, Skipped, Value, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.comm import exposure_by_cause, needless_buckets
from hotloop.judge.diagnose.forecasts import (
    count_operators,
    dispatch_ns,
    forecast_of_faster_optimizer,
)
from hotloop.judge.diagnose.loading import batch_places, most_saved_ratio
from hotloop.judge.diagnose.measured import SURE_RATIO, basis_of_replay, is_material, known_count, train_share

LEAST_DISPATCH_RATIO = 0.3
LOW_BUCKETS_RATIO = 0.4
"""Rule of thumb, as in small-buckets: the certain part of what larger buckets save if no probe timed them."""
LINE_UNKNOWN = "unknown: the source does not show which statement makes the batch"
SHARED_EXCHANGE_MID_RATIO = 0.5
"""Part of the exchange's time that the probe's expected saving assumes as shared: halfway between none and all."""


@rule("small-batch", "the batch is too small to keep the machine busy", kind=Kind.OPPORTUNITY)
def judge_small_batch(analysis: Analysis) -> Finding | Skipped | None:
    """
    ## What it does
    Forecasts the time per sample that a larger batch would save, by replaying this model's own operators at both sizes.
    Suggests the batch size that saves the most time among those that the probe timed (up to 64 times the current size,
    as far as host memory and the probe's time limit allow). If the savings of several sizes are within 2 % of the step,
    suggests the smallest of them.

    ## Why it costs
    Every operator costs a few microseconds of host time and reads its weights once, whatever the batch. The optimizer
    and the rest of the loop take the same time for one sample as for a thousand. With few samples per step, these fixed
    costs are a large part of the time per sample.

    ## How to recognize it
    The replayed operators take less than twice as long on twice the batch. To count no time twice, the forecast leaves
    out the measured saving of a fused or foreach optimizer (slow-optimizer), the time to start operators if
    uncompiled-model forecasts a saving, and the saving from larger buckets between ranks (small-buckets). If loader
    workers make the batches, the forecast does not exceed the rate at which they deliver samples.

    Without a replay, the rule compares the number of operators per step times the cost of starting one with the time of
    forward and backward; that comparison never raises the severity above low.

    ## What to do
    Raise the batch size while memory allows it. With gradient accumulation, use fewer, larger micro-batches: the
    gradient stays the same up to rounding, and so does training.

    ## When it is wrong
    Without accumulation, a larger batch changes the training: there are fewer updates per epoch, and you have to tune
    the learning rate again. If steps wait for input, fix that finding first: a step with a larger batch waits longer.
    """
    rank = analysis.lead
    accumulated = known_count(rank, "micro_batches") > 1.5
    forecast = rank.forecasts.get("larger-batch")
    if forecast is None:
        judged = _judge_counts(analysis)
        if judged is None:
            return Skipped(reason="no probe of a larger batch and no operator counts were recorded")
        is_worth = judged.cost_ratio >= LEAST_DISPATCH_RATIO
    else:
        judged = _judge_probe(analysis, forecast, accumulated)
        is_worth = is_material(analysis, judged.saving.mid_ratio)
    if not is_worth:
        return None
    where = batch_places(rank)
    return Finding(
        title=judged.title,
        phase="forward",
        cost_ns=round(judged.cost_ratio * analysis.step_ns),
        cost_ratio=judged.cost_ratio,
        saving=judged.saving,
        evidence={
            "samples_per_step": rank.samples_per_step,
            "micro_batches_per_step": known_count(rank, "micro_batches") or None,
            **judged.evidence,
            **({} if where else {"line": LINE_UNKNOWN}),
        },
        where=where,
        fix=Fix(technique="larger-micro-batch" if accumulated else "larger-batch", settings=judged.settings),
        unit=_unit_of(analysis),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """The saving per sample from a larger batch, and the evidence for it."""

    title: str
    cost_ratio: float
    saving: Saving
    evidence: Mapping[str, Value]
    settings: Mapping[str, Value]


def _judge_probe(analysis: Analysis, forecast: Forecast, accumulated: bool) -> _Judged:
    """From a replay of both sizes, less what other findings forecast for the same time."""
    rank = analysis.lead
    low, mid, high = forecast.saving_low_ratio, forecast.saving_mid_ratio, forecast.saving_high_ratio
    factor = int(forecast.settings.get("factor") or 2)
    # Part of a step's fixed time that a batch of this many times the size saves per sample.
    shared_ratio = 1.0 - 1.0 / factor
    faster = None if accumulated else forecast_of_faster_optimizer(analysis)
    if faster is not None:
        # Time that a faster form takes off the optimizer is no longer there to share.
        low -= faster.saving_high_ratio * shared_ratio
        mid -= faster.saving_mid_ratio * shared_ratio
        high -= faster.saving_low_ratio * shared_ratio
    evidence: dict[str, Value] = {}
    if faster is not None:
        evidence["alone_saving_ratio"] = round(forecast.saving_mid_ratio, 4)
        evidence["after_technique"] = faster.technique
    buckets = None if accumulated else _saved_by_buckets(analysis)
    if buckets is not None:
        low_buckets_ratio, mid_buckets_ratio = buckets
        evidence.setdefault("alone_saving_ratio", round(forecast.saving_mid_ratio, 4))
        mid -= mid_buckets_ratio * SHARED_EXCHANGE_MID_RATIO * shared_ratio
        high -= low_buckets_ratio * shared_ratio
    saving = saving_within(most_saved_ratio(rank), low, mid, high, basis_of_replay(low, mid))
    evidence |= dict(forecast.evidence)
    won = ["a faster optimizer"] * (faster is not None) + ["larger buckets"] * (buckets is not None)  # words: ok
    if not accumulated:
        evidence["convergence"] = "may change: fewer and larger updates per epoch"
    sure = saving.low_ratio >= SURE_RATIO
    times = "twice" if factor == 2 else f"{factor} times"
    title = f"{times} the batch {'would' if sure else 'may'} take {saving.mid_ratio:.0%} less time per "
    title += _unit_of(analysis)
    if won:
        title += f" beyond what {' and '.join(won)} save{'s' if len(won) == 1 and buckets is None else ''}"  # words: ok
    if not sure:
        title += ", or save nothing"
    return _Judged(
        title=title, cost_ratio=saving.high_ratio, saving=saving, evidence=evidence, settings=dict(forecast.settings)
    )


def _saved_by_buckets(analysis: Analysis) -> tuple[float, float] | None:
    """Low and expected share of the step that larger buckets save; None if they are not a fault or it is unknown."""
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
    """A larger batch makes no step shorter: even if samples could not be counted, the saving is per sample."""
    return "sample" if analysis.unit == "step" else analysis.unit


def _judge_counts(analysis: Analysis) -> _Judged | None:
    """From the share of the step that it takes to start operators; None if these were not counted."""
    if not (analysis.lead.ops or {}).get("ops"):
        return None
    cost = min(train_share(analysis), dispatch_ns(analysis.lead) / analysis.lead.step_mean_ns)
    return _Judged(
        title=f"launching operators takes about {cost:.0%} of a step; a larger batch would spread that cost",
        cost_ratio=cost,
        # Never above low: this does not show how the computation itself grows with the batch.
        saving=saving_within(cost, min(0.04, 0.1 * cost), 0.25 * cost, 0.5 * cost, Basis.RULE_OF_THUMB),
        evidence={"operators_per_step": round(count_operators(analysis.lead))},
        settings={"factor": 2},
    )
