"""frequent-validation: validation takes a large part of the run."""

from __future__ import annotations

import math

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import Basis, Finding, Fix, Skipped, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.lines import VALIDATING, places_in_loop, time_between_phases
from hotloop.judge.diagnose.measured import (
    format_bytes,
    format_interval,
    format_share,
    format_time,
    known_count,
    recurs_unevenly,
    steps_between,
)

FLOOR_RATIO = 0.10
"""A careful training run also validates once per epoch and spends a few percent of its time on it."""

AIM_RATIO = 0.03
"""The share of the run to which validation should fall."""

MOST_TIMES_RARER = 100

PEAK_BYTES, PEAK_PART = 200 << 20, 1.2
"""If host memory in validation peaks this far above everything else, validation keeps something, mostly predictions."""


@rule("frequent-validation", "validation takes a large part of the run", ablation="skip-validation")
def frequent_validation(analysis: Analysis) -> Finding | Skipped | None:
    """## What it does
    Measures the time spent in validation between training steps, and how much less often you would have to validate to
    spend about 3 % of the run on validation.

    ## Why it costs
    Validation does not train the model. A validation-loss curve needs far fewer points than you get by validating every
    few dozen steps.

    ## How to recognize it
    The `validation` phase (no-grad forwards that recur at intervals longer than a step) takes more than a tenth of the
    run.

    ## What to do
    Validate only every k-th time (the finding gives k), or on a fixed part of the validation set, with the full set at
    the end. Use larger batches: validation keeps no gradients. If the title says that host memory peaks in validation,
    your code keeps and joins the predictions of the entire set: reduce them batch by batch
    (`preprocess_logits_for_metrics` of the Trainer, a metric's `update`).

    ## When it is wrong
    With less frequent validation, early stopping and schedules that react to the validation loss react later. A short
    run whose purpose is evaluation needs no change. Rollouts and teachers are not validation; such forwards count only
    if they recur at intervals longer than a step.
    """
    rank = max(analysis.ranks, key=lambda one: one.breakdown.share("validation"))
    in_phase_ns, beside = rank.breakdown.mean_ns("validation"), time_between_phases(rank, VALIDATING)
    mean_ns = in_phase_ns + beside.mean_ns
    cost_ratio = min(1.0, rank.breakdown.share("validation") + beside.mean_ns / max(1.0, rank.step_mean_ns))
    if cost_ratio < FLOOR_RATIO:
        return None
    per_step = known_count(rank, "validations")
    seen = per_step * rank.steady_count
    if seen < 2:
        return Skipped(reason=f"validation took {format_share(cost_ratio)} of the run, but ran fewer than two times")
    training = 1.0 - cost_ratio
    times_rarer = MOST_TIMES_RARER
    if training > 0:
        wanted = cost_ratio * (1.0 - AIM_RATIO) / (AIM_RATIO * training)
        times_rarer = max(2, min(MOST_TIMES_RARER, math.ceil(wanted)))
    every = steps_between(rank.columns["validations"]) or 1.0 / per_step
    how_often = format_interval(every, recurs_unevenly(rank.columns["validations"]))
    saved = cost_ratio * (1.0 - 1.0 / times_rarer)
    return Finding(
        title=f"validation takes {format_share(cost_ratio)} of the run: {format_time(mean_ns / per_step)} {how_often}"
        f"{_describe_peak(rank)}",
        phase="validation",
        cost_ns=round(mean_ns),
        time_ns={"validation": in_phase_ns, "other": round(beside.mean_ns)},
        cost_ratio=cost_ratio,
        # How rare validation may be is the reader's choice: the finding promises no more than halving it.
        saving=saving_within(cost_ratio, saved / 2, saved, cost_ratio, Basis.SIMULATED),
        evidence={
            "validations": round(seen),
            "steps_per_validation": round(every, 1),
            "validation_ns": round(mean_ns / per_step),
            "validation_peak_bytes": rank.peaks_bytes.get("validation"),
            "training_peak_bytes": rank.peaks_bytes.get("training"),
            "behind_its_forwards_ns": round(beside.mean_ns / per_step) if beside.mean_ns > 0 else None,
        },
        where=places_in_loop(rank, "nograd_ns", beside="forward_ns")[:2],
        fix=Fix(technique="validate-less-often", settings={"every": times_rarer}),
    )


def _describe_peak(rank: RankAnalysis) -> str:
    """The peak, if validation needs much more host memory than anything else."""
    peak = rank.peaks_bytes.get("validation", 0)
    others = max((size for part, size in rank.peaks_bytes.items() if part != "validation"), default=0)
    if not others or peak < max(PEAK_PART * others, others + PEAK_BYTES):
        return ""
    sizes = f"at {format_bytes(peak)} ({format_bytes(others)} elsewhere)"
    return f"; host memory peaks in it, {sizes}: predictions may be kept"
