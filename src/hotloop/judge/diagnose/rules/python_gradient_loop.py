"""python-gradient-loop: a Python loop handles gradients or weights one tensor at a time."""

from __future__ import annotations

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import Basis, Finding, Fix, Saving, Skipped, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.comm import loops_around_collectives
from hotloop.judge.diagnose.lines import (
    EXCHANGING,
    IN_PLACE,
    NOTHING,
    WEIGHTS,
    add_shares,
    own_ns,
    places,
    time_of_kinds,
)
from hotloop.judge.diagnose.measured import format_share, format_time, shorten_code, threshold_ratio

GAPS = ("after_backward_ns", "other_ns")
"""Between backward and optimizer, the place for clipping; and after the optimizer: hand-written decay and averages."""

LEAST_OVER_PROBE_RATIO, OVER_PROBE_RATIO, MOST_OVER_PROBE_RATIO = 0.9, 1.5, 2.6
"""Time of a pass over all tensors in a step over its time in the probe, whose caches are warmer: least, median and most
of 14 quiet runs of the zoo (commit 6782504, 2 cores, their optimizers; one run with 5.6 times is left out)."""
UNGAUGED_MID_RATIO = 0.8
"""Rule of thumb: part of the loop that a foreach form saves."""
TENSOR_PASS_NS = 2_500.0
"""Time per tensor that a foreach form still spends (its inner loop is C++ on a CPU)."""


@rule(
    "python-gradient-loop", "a Python loop handles gradients or weights one tensor at a time", ablation="skip-statement"
)
def python_gradient_loop(analysis: Analysis) -> Finding | Skipped | None:
    """## What it does
    Measures Python loops over parameters between the backward pass and the next batch: hand-written clipping, weight
    decay, gradient noise, weight averages.

    ## Why it costs
    Each tensor takes several operators, each with Python overhead, and often an `.item()` that waits for the device.
    The interpreter limits the speed, not memory bandwidth.

    ## How to recognize it
    The gap after backward (or after the optimizer) is a material part of the step, and stack samples there show lines
    that touch `.grad` or loop over `parameters()`.

    ## What to do
    Use `torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)` and the optimizer's own `weight_decay`. For
    other loops, use `torch._foreach_mul_`, `torch._foreach_lerp_` and similar functions, which take lists of tensors.
    Keep norms as tensors.

    ## When it is wrong
    A loop over a few large tensors is memory-bound and is just as slow in any form. Work that differs from tensor to
    tensor (layer-wise rules with branches) may have no foreach form.
    """
    lead = analysis.lead
    threshold = threshold_ratio(lead, judged_fields=GAPS)
    gaps_ns = sum(own_ns(lead, name) for name in GAPS)
    if lead.step_mean_ns <= 0 or gaps_ns / lead.step_mean_ns < threshold:
        return None
    if not any(lead.lines.get(name) for name in GAPS):
        return Skipped(
            reason=f"too few stack samples to explain {format_share(gaps_ns / lead.step_mean_ns)} of the step, "
            "around the optimizer",
        )
    # exposed-communication already reports what it counts with the collectives.
    kinds = (WEIGHTS, IN_PLACE, *((EXCHANGING,) if loops_around_collectives(analysis) is NOTHING else ()))
    part = add_shares(*(time_of_kinds(lead, name, *kinds) for name in GAPS))
    cost_ratio = min(1.0, part.mean_ns / lead.step_mean_ns)
    if cost_ratio < threshold or not part.lines:
        return None
    tensors = max((one.tensors or 0 for one in lead.optimizers), default=0)
    line = part.lines[0]
    shown = f" (`{shorten_code(line.text)}`)" if line.text.strip() else ""
    over = f" over {tensors} tensors" if tensors else ""
    return Finding(
        title=f"a Python loop{over} in {line.where.function}{shown} takes {format_time(part.mean_ns)} "
        f"({format_share(cost_ratio)}) of every step",
        phase="other",
        cost_ns=round(part.mean_ns),
        time_ns={"other": round(part.mean_ns)},
        cost_ratio=cost_ratio,
        saving=_forecast(lead, cost_ratio, part.low_ns / part.mean_ns, tensors),
        evidence={
            "tensors": tensors or None,
            "samples": part.samples_count,
            "low_ns": round(part.low_ns),
            "high_ns": round(part.high_ns),
        },
        where=places(part.lines),
        fix=Fix(technique="foreach-clipping"),
    )


def _forecast(lead: RankAnalysis, cost_ratio: float, surely: float, tensors: int) -> Saving:
    """The probe's figures; without it, what would remain: a pass over the gradients, gauged by the optimizer's own
    time."""
    probed = lead.forecasts.get("foreach-clipping")
    if probed is not None and isinstance(left_ns := probed.evidence.get("foreach_ns"), (int, float)):
        # The probe timed the foreach form; the training itself shows the time of this program's own loop.
        left = left_ns / lead.step_mean_ns
        return saving_within(
            cost_ratio,
            surely * cost_ratio - MOST_OVER_PROBE_RATIO * left,
            cost_ratio - OVER_PROBE_RATIO * left,
            cost_ratio - LEAST_OVER_PROBE_RATIO * left,
            Basis.MEASURED,
        )
    if probed is not None:
        return saving_within(
            cost_ratio, probed.saving_low_ratio, probed.saving_mid_ratio, probed.saving_high_ratio, Basis.MEASURED
        )
    optimizer_ratio = lead.breakdown.share("optimizer")
    if not tensors or optimizer_ratio <= 0:
        return saving_within(
            cost_ratio, surely * cost_ratio / 2, UNGAUGED_MID_RATIO * cost_ratio, cost_ratio, Basis.RULE_OF_THUMB
        )
    passes = 2 * tensors * TENSOR_PASS_NS / lead.step_mean_ns
    # Clipping reads the gradients for the norm and rewrites them once; an Adam update moves more than twice as much.
    mid = cost_ratio - min(0.9 * cost_ratio, passes + 0.2 * optimizer_ratio)
    low = surely * cost_ratio - min(0.95 * cost_ratio, 2 * passes + 0.45 * optimizer_ratio)
    high = cost_ratio - min(0.9 * cost_ratio, 0.5 * passes + 0.05 * optimizer_ratio)
    return saving_within(cost_ratio, low, mid, high, Basis.RULE_OF_THUMB)
