"""Analysis -> needless-recompute: activation checkpointing while memory is far from full."""

from __future__ import annotations

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import Basis, Finding, Fix, Skipped, saving_of_removal, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.measured import is_material, is_material_span, known_mean, known_places

FULL_RATIO = 0.5
BYTES_PER_PARAMETER = 16
"""Weights, gradients and two moments in float32."""
PROCESS_BYTES = 400 << 20
"""Host memory that a process with torch takes before it has a model."""
UNTIMED_LOW_RATIO = 0.2
UNTIMED_MID_RATIO = 0.6
"""Rule of thumb: part of a full forward that is computed again, if it was not timed."""
KEPT_FACTOR = 5.0
"""Activations kept without checkpointing, relative to those with it (measured: 4 times for a transformer per block)."""


@rule("needless-recompute", "activations are recomputed although they would fit in memory")
def judge_needless_recompute(analysis: Analysis) -> Finding | Skipped | None:
    """
    ## What it does
    Finds activation checkpointing in runs whose activations would fit in memory.

    ## Why it costs
    Checkpointing discards a block's activations and recomputes the block's forward during backward. This adds up to one
    more forward per step, which is a quarter to a third of the computation.

    ## How to recognize it
    torch.utils.checkpoint ran inside training forwards, peak memory stayed below half of the memory that this process
    may use, and the estimated peak without checkpointing fits too. The cost is the time of module calls inside
    backward; if that was not measured, the forward time is used instead.

    ## What to do
    Turn checkpointing off, or keep it only for the blocks with the largest activations. If memory then gets tight,
    `create_selective_checkpoint_contexts` keeps the expensive results and recomputes the cheap ones.

    ## When it is wrong
    The estimated peak is rough: try the change, and watch the actual peak. Sequences that are longer than those in this
    run may need the memory.
    """
    rank = analysis.lead
    if not rank.checkpointing:
        return None
    peak, total = rank.memory_peak_bytes, rank.memory_total_bytes
    if peak is None or not total:
        return Skipped(reason="the peak or the size of memory is unknown")
    shared = max(1, rank.local_world_size or 1) if rank.device_type == "cpu" else 1
    usable = total / shared
    estimate = _peak_without_checkpointing(rank, peak)
    if peak > FULL_RATIO * usable or estimate > 0.9 * usable:
        return None
    recompute_ns = known_mean(rank, "recompute_ns")
    if recompute_ns is not None:
        cost_ratio = min(1.0, recompute_ns / rank.step_mean_ns)
        saving = saving_of_removal(cost_ratio)
    else:
        cost_ratio = min(analysis.share("backward"), rank.mean.get("forward_ns", 0.0) / rank.step_mean_ns)
        low, mid = UNTIMED_LOW_RATIO * cost_ratio, UNTIMED_MID_RATIO * cost_ratio
        saving = saving_within(cost_ratio, low, mid, cost_ratio, Basis.RULE_OF_THUMB)
    is_clocked = recompute_ns is not None
    if not (
        is_material_span(analysis, cost_ratio, "recompute_ns") if is_clocked else is_material(analysis, cost_ratio)
    ):
        return None
    return Finding(
        title=f"activations are recomputed although memory is only {peak / usable:.0%} full",
        phase="backward",
        cost_ns=round(cost_ratio * analysis.step_ns),
        time_ns={"backward": round(cost_ratio * rank.step_mean_ns)} if is_clocked else None,
        cost_ratio=cost_ratio,
        saving=saving,
        evidence={
            "recompute_ns_per_step": None if recompute_ns is None else round(recompute_ns),
            "memory_peak_bytes": peak,
            "memory_usable_bytes": round(usable),
            "estimated_peak_without_bytes": round(estimate),
        },
        where=known_places(rank.checkpointing_where),
        fix=Fix(technique="keep-activations"),
    )


def _peak_without_checkpointing(rank: RankAnalysis, peak_bytes: int) -> float:
    """Estimated peak in bytes if all activations were kept."""
    static = BYTES_PER_PARAMETER * (rank.model_parameters or 0)
    if rank.device_type == "cpu":
        static += PROCESS_BYTES
    return min(static, peak_bytes) + KEPT_FACTOR * max(0, peak_bytes - static)
