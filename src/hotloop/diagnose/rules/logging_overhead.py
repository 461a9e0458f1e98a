"""logging-overhead: the loop stops to write logs and metrics."""

from __future__ import annotations

from statistics import median

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import Basis, Finding, Fix, Kind, Numerics, Safety, Skipped, saving_within
from hotloop.core.recording import GAP_FIELDS
from hotloop.core.rules import rule
from hotloop.diagnose.lines import LOGGING, add_shares, places, saving_functions, time_of_kinds
from hotloop.diagnose.noise import threshold_ratio
from hotloop.diagnose.wording import say_share, say_time, shorten_code


@rule("logging-overhead", "the loop stops to write logs and metrics")
def logging_overhead(analysis: Analysis) -> Finding | Skipped | None:
    """## What it does
    Measures the time in which the training loop writes logs: printing, files with flush or fsync, scalars and
    histograms for TensorBoard, W&B or MLflow, metrics that are computed only to be logged.

    ## Why it costs
    Logging runs in the loop, between the phases, and the step waits for it. On an accelerator it also waits for the
    device first, because a logged value has to be read back.

    ## How to tell
    Stack samples in the gaps between the phases show lines that log; their share of the samples times the measured
    time of the gap is the cost.

    ## What to do
    Log every N steps (N is ten times what it is now). Keep values as tensors and read them back together. Leave
    histograms to every few hundred steps, and let files be flushed by their buffer.

    ## When it is wrong
    Lines are told by their text and the names of their functions: a function called `log_softmax_stats` that computes
    something the training needs would be counted. Look at the named line before removing it.
    """
    lead = analysis.lead
    threshold = threshold_ratio(lead, judged_fields=GAP_FIELDS)
    gaps_ns = sum(lead.mean[name] for name in GAP_FIELDS)
    if lead.step_mean_ns <= 0 or gaps_ns / lead.step_mean_ns < threshold:
        return None
    if not any(lead.lines.get(name) for name in GAP_FIELDS):
        return Skipped(
            rule="logging-overhead",
            reason=f"no stack samples say what runs in the {say_share(gaps_ns / lead.step_mean_ns)} of the step "
            "between its phases",
        )
    # What a function that saves a checkpoint flushes and renames belongs to the checkpoint.
    saving = saving_functions(lead)
    part = add_shares(*(time_of_kinds(lead, name, LOGGING, but_not_in=saving) for name in GAP_FIELDS))
    cost_ratio = min(1.0, part.mean_ns / lead.step_mean_ns)
    if cost_ratio < threshold or not part.lines:
        return None
    line = part.lines[0]
    interval = steps_between_logs(lead, part.mean_ns)
    if interval >= 2:
        often = f"a step in the mean, in about one of {interval}"
    else:
        # Where the gaps hold more than the logging, no step tells whether it logged.
        often = "of every step" if part.mean_ns >= 0.5 * gaps_ns else "a step in the mean"
    shown = f" ({shorten_code(line.text)})" if line.text.strip() else ""
    return Finding(
        rule="logging-overhead",
        kind=Kind.FAULT,
        title=f"logging takes {say_time(part.mean_ns)} ({say_share(cost_ratio)}) {often}, "
        f"most of it in {line.where.function}{shown}",
        phase="other",
        cost_ns=round(part.mean_ns),
        cost_ratio=cost_ratio,
        # Ten times as rare or more leaves at most a tenth of it.
        saving=saving_within(
            cost_ratio, 0.85 * part.low_ns / lead.step_mean_ns, 0.9 * cost_ratio, 0.98 * cost_ratio, Basis.SIMULATED
        ),
        evidence={"samples": part.samples_count, "low_ns": round(part.low_ns), "high_ns": round(part.high_ns)},
        where=places(part.lines),
        fix=Fix(
            technique="log-less-often", settings={"every": 10 * interval}, safety=Safety.ASK, numerics=Numerics.EXACT
        ),
        unit=analysis.unit,
    )


def steps_between_logs(rank: RankAnalysis, mean_ns: float) -> int:
    """In every how many'th step a cost of ``mean_ns`` a step arises; 1 where most steps may have their part of it.

    A usual step whose gaps are much shorter than the mean cost cannot have paid it.
    """
    columns = [rank.columns[name] for name in GAP_FIELDS if rank.columns.get(name)]
    gaps_ns = [sum(values) for values in zip(*columns, strict=True)]
    if not gaps_ns:
        return 1
    usual_ns = median(gaps_ns)
    if usual_ns >= 0.5 * mean_ns:
        return 1
    logging_count = sum(gap_ns > usual_ns + mean_ns for gap_ns in gaps_ns)
    return max(1, round(len(gaps_ns) / logging_count)) if logging_count else 1
