"""logging-overhead: the training loop stops to write logs and metrics."""

from __future__ import annotations

from statistics import median

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import Finding, Fix, Skipped, saving_of_removal
from hotloop.core.recording import GAP_FIELDS
from hotloop.core.rules import rule
from hotloop.judge.diagnose.lines import LOGGING, own_ns, places, time_between_phases
from hotloop.judge.diagnose.measured import add_columns, format_share, format_time, show_code, threshold_ratio

TIMES_RARER = 10
"""The factor by which the fix logs less often."""

LEAST_ACCOUNTED_RATIO = 0.7
"""Half of 20 stack samples give a share to within about a third (Wilson, 90 %: 0.33 to 0.67)."""


@rule("logging-overhead", "the training loop stops to write logs and metrics", ablation="skip-statement")
def logging_overhead(analysis: Analysis) -> Finding | Skipped | None:
    """## What it does
    Measures the time that the training loop spends on logging: printing, files with flush or fsync, scalars and
    histograms for TensorBoard, W&B or MLflow, and metrics that are computed only for the log.

    ## Why it costs
    Logging runs in the loop, between the phases, and the step waits for it. On an accelerator, logging first waits for
    the device, because a logged value has to be read back.

    ## How to recognize it
    Stack samples in the gaps between phases show lines that log. The cost is the lines' share of the samples times the
    measured time of the gap.

    ## What to do
    Log every N steps (the finding assumes ten times less often than now). Keep values as tensors and read them back
    together. Write histograms every few hundred steps, and let buffers flush files.

    ## When it is wrong
    The rule recognizes lines by their text and function names: a function called `log_softmax_stats` counts as logging
    even if training needs its result. Check the reported line before you remove it.
    """
    lead = analysis.lead
    threshold = threshold_ratio(lead, judged_fields=GAP_FIELDS)
    gaps_ns = sum(own_ns(lead, name) for name in GAP_FIELDS)
    if lead.step_mean_ns <= 0 or gaps_ns / lead.step_mean_ns < threshold:
        return None
    if not any(lead.lines.get(name) for name in GAP_FIELDS):
        return Skipped(
            reason=f"too few stack samples to explain {format_share(gaps_ns / lead.step_mean_ns)} of the step"
        )
    part = time_between_phases(lead, LOGGING)
    cost_ratio = min(1.0, part.mean_ns / lead.step_mean_ns)
    if cost_ratio < threshold or not part.lines:
        return None
    line = part.lines[0]
    interval = steps_between_logs(lead, part.mean_ns)
    if interval >= 2:
        often = f"per step on average, in about 1 of {interval} steps"
    else:
        # If the gaps hold more than the logging, no step shows whether it logged.
        often = "of every step" if part.mean_ns >= 0.5 * gaps_ns else "per step on average"
    gone = 1.0 - 1.0 / TIMES_RARER
    return Finding(
        title=f"logging takes {format_time(part.mean_ns)} ({format_share(cost_ratio)}) {often}, "
        f"most of it in {line.where.function}{show_code(line)}",
        phase="other",
        cost_ns=round(part.mean_ns),
        time_ns={"other": round(part.mean_ns)},
        cost_ratio=cost_ratio,
        saving=saving_of_removal(cost_ratio, gone * cost_ratio, gone * part.low_ns / lead.step_mean_ns),
        evidence={"samples": part.samples_count, "low_ns": round(part.low_ns), "high_ns": round(part.high_ns)},
        where=places(part.lines),
        fix=Fix(technique="log-less-often", settings={"every": TIMES_RARER * interval}),
    )


def steps_between_logs(rank: RankAnalysis, mean_ns: float) -> int:
    """N, if a cost of ``mean_ns`` per step arises in every N-th step; 1 if most steps may share the cost.

    A usual step whose gaps are much shorter than the mean cost cannot have paid it. A step with longer gaps has not
    paid it either, if a few much longer gaps make up the cost.
    """
    gaps_ns = add_columns(rank.columns, GAP_FIELDS)
    if rank.validation_ns and rank.columns.get("burst_gap_ns"):
        gaps_ns = [max(0, ns - max(0, burst)) for ns, burst in zip(gaps_ns, rank.columns["burst_gap_ns"], strict=True)]
    if not gaps_ns:
        return 1
    usual_ns = median(gaps_ns)
    beyond_ns = [gap_ns - usual_ns for gap_ns in gaps_ns if gap_ns > usual_ns + mean_ns]
    # If every step has other work too, the long gaps hold the logging and little more.
    accounted_ratio = sum(beyond_ns) / (mean_ns * len(gaps_ns))
    if usual_ns >= 0.5 * mean_ns and not LEAST_ACCOUNTED_RATIO <= accounted_ratio <= 1 / LEAST_ACCOUNTED_RATIO:
        return 1
    return max(1, round(len(gaps_ns) / len(beyond_ns))) if beyond_ns else 1
