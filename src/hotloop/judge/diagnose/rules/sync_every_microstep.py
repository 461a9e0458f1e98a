"""Analysis -> sync-every-microstep: ranks average gradients after every micro-batch instead of once per step."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import REMOVED_LOW_RATIO, Basis, Finding, Fix, Safety, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.comm import extra_syncs, is_distributed, sharded_extra_ns, sync_count, sync_saving_ns
from hotloop.judge.diagnose.measured import MATERIAL_RATIO, known_count, known_places, line_places

UNKNOWN_COST_RATIO, UNKNOWN_LOW_RATIO = 0.2, 0.1
"""Rule of thumb: an exchange of unknown time as a part of backward, and the certain part of it."""
SPREAD_RATIO = 1 / 3
"""Part of FSDP2's bytes that scatters gradients: weights are gathered twice, and gradients have as many bytes."""


@rule("sync-every-microstep", "ranks synchronize gradients after every micro-batch", ablation="skip-exchange")
def judge_sync_every_microstep(analysis: Analysis) -> Finding | None:
    """
    ## What it does
    Finds gradient accumulation under DistributedDataParallel or FSDP2 that synchronizes after every micro-batch.

    ## Why it costs
    Each backward outside `no_sync()` exchanges all gradients between ranks. With k micro-batches per step, k-1 of these
    exchanges are wasted: only the sum after the last one is used.

    ## How to recognize it
    There are several backwards per optimizer step, and equally many DDP forwards that requested synchronization. The
    cost is the communication per exchange that does not overlap with backward, times k-1. On a CPU, it is all of the
    communication, because the exchange runs on the cores that compute.

    ## What to do
    Wrap forward and backward of all micro-batches except the last in `with model.no_sync():` (in Accelerate:
    `accelerator.accumulate(model)`). Under FSDP2, call `model.set_requires_gradient_sync(last)` before each
    micro-batch, and `model.set_reshard_after_backward(last)`, which also all-gathers the weights only once per step.

    ## When it is wrong
    Exposed communication includes waiting for a slow rank, and much of that wait returns at the one exchange that
    remains, so the forecast is a range. Under FSDP2, synchronizing every time keeps gradients and weights sharded,
    which may be what you want: unsharded gradients and weights need the memory that sharding saves. The time of FSDP2's
    exchange is known only on a CPU, where it runs on the training thread.
    """
    rank = analysis.lead
    extra = extra_syncs(analysis)
    if not is_distributed(analysis) or extra <= 0:
        return None
    if rank.ddp is None:
        return _judge_sharded(analysis)
    syncs = sync_count(rank)
    savings = sync_saving_ns(analysis)
    backward_ns = analysis.mean("backward_ns")
    if savings is None:
        # Unknown communication: exchanging the gradients costs something, but nobody knows how much.
        cost_ns = UNKNOWN_COST_RATIO * backward_ns * extra / syncs
        low_ns, mid_ns, basis = UNKNOWN_LOW_RATIO * cost_ns, cost_ns / 2, Basis.RULE_OF_THUMB
    else:
        low_ns, mid_ns, cost_ns = savings
        # Latency and rate of other backends were not measured.
        is_gloo = (rank.ddp.backend or "gloo").lower() == "gloo"
        basis = Basis.SIMULATED if is_gloo else Basis.RULE_OF_THUMB
        cost_ns = min(cost_ns, backward_ns)
        if cost_ns < 2.0 * rank.step_noise_ratio * analysis.step_ns:
            low_ns = 0.0
    cost_ratio = min(1.0, cost_ns / analysis.step_ns)
    if cost_ratio < MATERIAL_RATIO:
        return None
    return Finding(
        title=f"gradients are averaged over ranks {syncs:.2g} times per step; once is enough",
        phase="backward",
        cost_ns=round(cost_ratio * analysis.step_ns),
        time_ns={"backward": round(cost_ratio * analysis.step_ns)},
        cost_ratio=cost_ratio,
        saving=saving_within(cost_ratio, low_ns / analysis.step_ns, mid_ns / analysis.step_ns, cost_ratio, basis),
        evidence={
            "backwards_per_step": round(known_count(rank, "backwards"), 2),
            "synchronised_per_step": round(syncs, 2),
            "comm_ns_per_sync": None if rank.ddp.comm_ns is None else round(rank.ddp.comm_ns),
            "exposed_ns_per_sync": None if rank.ddp.exposed_comm_ns is None else round(rank.ddp.exposed_comm_ns),
        },
        where=known_places(*line_places(rank.lines.get("backward_ns", ()), most=1), rank.ddp.where),
        fix=Fix(technique="no-sync-accumulation"),
        ranks=tuple(r.rank for r in analysis.ranks if r.rank is not None),
    )


def _judge_sharded(analysis: Analysis) -> Finding | None:
    """The same under FSDP2. The user chooses whether only gradients wait for the last micro-batch, or weights also stay
    unsharded: the low end is the first, the middle the second. Runs whose fixed versions do both saved 1.7 and 1.1
    times the time of their collectives (fsdp2-accumulate and fsdp_gpt in benchmarks/results/fresh): copies in and out
    of the exchanged blocks disappear with them, and count in forward and backward."""
    rank, syncs = analysis.lead, sync_count(analysis.lead)
    cost_ns = sharded_extra_ns(analysis)
    cost_ratio = min(1.0, cost_ns / analysis.step_ns)
    if cost_ratio < MATERIAL_RATIO:
        return None
    low_ratio = REMOVED_LOW_RATIO * SPREAD_RATIO * cost_ratio
    return Finding(
        title=f"FSDP2 reduce-scatters gradients {syncs:.2g} times per step; once is enough if unsharded gradients fit "
        "in memory",
        phase="communication",
        cost_ns=round(cost_ns),
        time_ns={"communication": round(cost_ns)},
        cost_ratio=cost_ratio,
        saving=saving_within(cost_ratio, low_ratio, cost_ratio, cost_ratio, Basis.RULE_OF_THUMB),
        evidence={
            "backwards_per_step": round(known_count(rank, "backwards"), 2),
            "synchronised_per_step": round(syncs, 2),
            "gradients_alone_ratio": round(SPREAD_RATIO * cost_ratio, 4),
        },
        where=line_places(rank.lines.get("backward_ns", ()), most=1),
        fix=Fix(technique="no-sync-accumulation", safety=Safety.SHOW),
        ranks=tuple(r.rank for r in analysis.ranks if r.rank is not None),
    )
