"""Analysis -> exposed-communication: exchange between ranks that is not overlapped and that no other rule explains."""

from __future__ import annotations

from dataclasses import replace

from hotloop.core.analysis import Analysis, DdpFacts, RankAnalysis
from hotloop.core.findings import (
    REMOVED_LOW_RATIO,
    Basis,
    Finding,
    Fix,
    Numerics,
    Saving,
    Skipped,
    saving_of_removal,
    saving_within,
)
from hotloop.core.link_choice import WayChoice
from hotloop.core.rules import rule
from hotloop.core.trace_analysis import TraceAnalysis
from hotloop.judge.diagnose.comm import (
    LOOPBACK_BYTES_PER_S,
    applied_sender,
    bucket_bytes,
    bucket_cap_mib,
    choose_sending,
    crossed_link,
    explicit_ns,
    exposure_by_cause,
    is_distributed,
    loops_around_collectives,
    saved_ratio,
    sender_ns,
    shares_its_cores,
)
from hotloop.judge.diagnose.lines import FieldShare
from hotloop.judge.diagnose.measured import format_share, is_material, known_count, known_places, line_places
from hotloop.judge.diagnose.on_trace import MATERIAL_RATIO, NO_DEVICE, device_ranks, saving_from

ONE_BUCKET_BYTES = 8 << 20
FEW_COLLECTIVES = 3.5
"""With at most this many collectives of its own per step, the training code does not send gradients one by one."""
SHARDED_SAVING = (0.02, 0.15, 0.6)
"""Rule of thumb: low, expected and high part of FSDP's own exchange that a change saves; sharding itself requires
gathering weights and scattering gradients. Also used for DDP exchange that nothing explains."""
FEW_CALLS_SAVING = (0.4, 0.8, 1.0)
"""Rule of thumb: the same for a few calls per step in addition to DDP's, most of which need not run in every step."""
HIDEABLE_SAVING = (0.2, 0.5, 0.9)
"""Rule of thumb: the same for an exchange that every step needs and that can only be overlapped."""
HIDDEN_BY_NO_CORE_SAVING = (0.0, 0.1, 0.5)
"""Rule of thumb: the same if the exchange occupies the cores that would otherwise compute."""
LEAST_NAMED_RATIO = 0.04
"""Below a medium finding: no wrong setting could be identified."""
MANY_CALLS_SAVING = (0.45, 0.75, 1.0)
"""Rule of thumb: the same for gradients that are sent one by one, if their bytes are unknown."""


def exposed_communication_on_trace(analysis: TraceAnalysis) -> Finding | Skipped | None:
    """Communication on the device while nothing computes, on the rank with the least of it."""
    ranks = device_ranks(analysis)
    if not ranks:
        return Skipped(reason=NO_DEVICE)
    parts = [rank.judged for rank in ranks if rank.judged is not None]
    ratios = [part.exposed_comm_ns / max(1, part.window_ns) for part in parts]
    least = min(range(len(ranks)), key=lambda i: ratios[i])
    cost_ratio, part, rank = ratios[least], parts[least], ranks[least]
    if cost_ratio < MATERIAL_RATIO:
        return None
    overlap = part.overlap_ratio or 0.0
    whose = f" on rank {rank.facts.rank}, which has the least," if len(ranks) > 1 else ""
    return Finding(
        title=f"{format_share(cost_ratio)} of the device's time{whose} is communication that does not overlap with "
        f"computation ({format_share(overlap)} of the communication overlaps)",
        phase="communication",
        cost_ns=round(cost_ratio * rank.step_ns),
        time_ns={"exposed_comm": round(cost_ratio * rank.step_ns)},
        cost_ratio=cost_ratio,
        # One rank's file cannot separate transfer from waiting for a slow rank; with several ranks, transfer remains.
        saving=saving_from(rank.forecasts.get("hidden-communication"), cost_ratio, 0.15, 0.4, 0.9),
        evidence={
            "comm_ns": part.comm_ns,
            "exposed_comm_ns": part.exposed_comm_ns,
            "overlap_ratio": round(overlap, 4),
            "kernels": [f"{group.name[:60]} x{group.count}" for group in rank.timeline.comm_groups[:3]],
            "least_over_ranks": len(ranks) > 1,
        },
        fix=FIX_TRAINING if any(one.trains is not False for one in analysis.ranks) else FIX_INFERENCE,
    )


FIX_TRAINING = Fix(technique="fewer-synchronisations")
FIX_INFERENCE = Fix(technique="overlap-own-collectives", numerics=Numerics.EXACT)
"""Without a backward, there are no gradients to exchange less often."""


@rule(
    "exposed-communication",
    "communication between ranks does not overlap with computation",
    on_trace=exposed_communication_on_trace,
    asks=("hidden-communication",),
    ablation="skip-exchange",
)
def judge_exposed_communication(analysis: Analysis) -> Finding | Skipped | None:
    """
    ## What it does
    Measures the communication that does not overlap with computation, on the rank that waits least. Excludes time spent
    waiting for a slow rank (`straggler`) and time that a slow link, small buckets or unneeded synchronization explains.

    ## Why it costs
    While ranks exchange gradients or other tensors and nothing else runs, every rank idles.

    ## How to recognize it
    DDP's own statistics give the communication time and the overlapped time per backward; the difference is exposed
    communication. Collectives that your own training code calls are timed at the call. Loops that copy tensors for
    these collectives also count if they are in the function that calls the collective. The rule uses the rank with the
    minimum, because the communication time of the other ranks includes waiting for that rank.

    ## What to do
    For your own collectives: let DistributedDataParallel average gradients (it overlaps them with backward), send one
    flat tensor instead of many, and reduce metrics every N steps. For one huge bucket: let DDP split it, so that
    sending starts before backward ends. Otherwise: use larger batches, or accumulation with `no_sync()`.

    ## When it is wrong
    The last bucket can never overlap. A small model on slow hosts may communicate for as long as it computes; that is a
    limit of the setup rather than a fault, and the forecast is low. If ranks use all cores of one host and exchange
    data through its memory, communication takes cores from computation: splitting a bucket then saves nothing, and
    gradients already sent as one flat tensor leave little to save. FSDP all-gathers weights and reduce-scatters
    gradients with calls that look like your own, so the forecast is low in that case too. If a strategy applied
    `compress-gradients`, the collectives of that technique count as the gradient exchange, except on a line that itself
    calls a collective.
    """
    if not is_distributed(analysis):
        return None
    if len(analysis.ranks) < 2:
        return Skipped(reason="only one of the ranks was recorded")
    rank = analysis.lead
    exposure = exposure_by_cause(analysis)
    if exposure is None:
        if rank.ddp is None:
            return None
        return Skipped(reason="DDP reported no communication statistics")
    loops = loops_around_collectives(analysis)
    cost_ns = exposure.explicit_ns + exposure.rest_ns
    exchange_ratio = min(1.0, cost_ns / analysis.step_ns)
    cost_ratio = min(1.0, exchange_ratio + loops.mean_ns / analysis.step_ns)
    if not is_material(analysis, cost_ratio, own_fields=("backward_ns", "communication_ns")):
        return None
    sender = applied_sender(rank)
    own_ns = exposure.explicit_ns - sender_ns(rank, exposure.explicit_ns)
    own_ratio = min(1.0, own_ns / analysis.step_ns)
    rest_ratio = exchange_ratio - own_ratio
    mostly_own = own_ratio >= rest_ratio
    mostly_called = 2 * exposure.explicit_ns >= cost_ns
    saving, fix = _forecast(analysis, exchange_ratio, own_ratio)
    if loops.mean_ns > 0:
        saving = _add_loops(saving, cost_ratio - exchange_ratio, loops)
    choice = None if mostly_own or sender is not None or fix != FIX_TRAINING else _choose(analysis)
    if choice is not None:
        fix = Fix(technique=str(choice.picked.technique), settings=choice.picked.settings)
        saving = saving_of_removal(cost_ratio, saved_ratio(analysis, choice, exposure.rest_ns))
    return Finding(
        title=f"{exchange_ratio:.0%} of the step is communication between ranks that does not overlap with computation"
        + (f", and {format_share(cost_ratio - exchange_ratio)} is the loops around it" if loops.mean_ns > 0 else "")
        + ("" if sender is None or mostly_own else f", mostly the exchange of {sender}"),
        phase="communication" if mostly_called else "backward",
        cost_ns=round(cost_ns + loops.mean_ns),
        time_ns={
            "communication": round(exposure.explicit_ns),
            "backward": round(exposure.rest_ns),
            "other": round(loops.mean_ns),
        },
        cost_ratio=cost_ratio,
        saving=saving,
        evidence={
            "own_collectives_ratio": round(own_ratio, 4),
            "loops_around_them_ratio": round(cost_ratio - exchange_ratio, 4),
            "gradient_exchange_ratio": round(rest_ratio, 4),
            **({} if sender is None else {"exchanged_by": sender}),
            "collectives_per_step": round(known_count(rank, "collectives"), 2),
            "buckets": len(bucket_bytes(rank.ddp)) if rank.ddp is not None else None,
            "least_over_ranks": True,
        },
        where=line_places(rank.lines.get("communication_ns", ()), 0.1, 3)
        if mostly_called
        else known_places(rank.ddp.where if rank.ddp else None),
        fix=fix,
        ranks=tuple(r.rank for r in analysis.ranks if r.rank is not None),
    )


def _add_loops(saving: Saving, loops_ratio: float, loops: FieldShare) -> Saving:
    """The saving, extended to the loops that copy for the training code's own collectives: both disappear together."""
    surely = REMOVED_LOW_RATIO * loops.low_ns / loops.mean_ns
    return replace(
        saving,
        low_ratio=saving.low_ratio + surely * loops_ratio,
        mid_ratio=saving.mid_ratio + loops_ratio,
        high_ratio=saving.high_ratio + loops_ratio,
    )


def _choose(analysis: Analysis) -> WayChoice | None:
    """A way to send less that pays off on the interface that gradients cross; None if there is none."""
    link = crossed_link(analysis)
    choice = None if link is None else choose_sending(analysis, link)
    return choice if choice is not None and choice.picked.technique is not None else None


def _forecast(analysis: Analysis, cost_ratio: float, own_ratio: float) -> tuple[Saving, Fix]:
    """The saving and the fix, given the shares of exchange in the step and the share of the training code's own calls
    in the exchange."""
    rank = analysis.lead
    rest_ratio = cost_ratio - own_ratio
    mostly_own = own_ratio >= rest_ratio
    collectives = known_count(rank, "collectives")
    sender = applied_sender(rank)
    if sender is not None:  # most of the calls are its own, so the training does not send gradients one by one
        collectives = min(collectives, FEW_COLLECTIVES)
    hideable = rank.ddp is not None and _is_unsplit(rank.ddp) and not shares_its_cores(rank)
    own, rest = _saving_of_own(rank, collectives), HIDEABLE_SAVING if hideable else SHARDED_SAVING
    low, mid, high = (own_ratio * a + rest_ratio * b for a, b in zip(own, rest, strict=True))
    saving = saving_within(cost_ratio, low, mid, high, Basis.RULE_OF_THUMB)
    merged_ratio = None if rank.model_is_sharded else _merged_ratio(rank, collectives)
    if mostly_own and merged_ratio is not None:
        saving = saving_of_removal(cost_ratio, merged_ratio * own_ratio)
    if (not mostly_own and not hideable) or (mostly_own and rank.model_is_sharded is True):
        # No wrong setting could be identified: never more than low.
        return replace(saving, low_ratio=min(low, LEAST_NAMED_RATIO)), FIX_TRAINING
    if mostly_own:
        return saving, Fix(technique="overlap-own-collectives")
    cap_mib = bucket_cap_mib(analysis, crossed_link(analysis))
    return saving, Fix(technique="ddp-buckets", settings={"bucket_cap_mb": cap_mib})


def _saving_of_own(rank: RankAnalysis, collectives: float) -> tuple[float, float, float]:
    """Low, expected and high part of the training code's own collectives that a change saves, by rule of thumb."""
    if rank.model_is_sharded:
        return SHARDED_SAVING
    if collectives > FEW_COLLECTIVES:
        return MANY_CALLS_SAVING
    if rank.ddp is not None:
        return FEW_CALLS_SAVING
    # Nothing else averages the gradients, so these few calls do: every step needs them, and they can only overlap.
    return HIDDEN_BY_NO_CORE_SAVING if shares_its_cores(rank) else HIDEABLE_SAVING


def _merged_ratio(rank: RankAnalysis, collectives: float) -> float | None:
    """Share of the time in one-by-one collectives that one call for all of them saves. What remains is the latency of
    one call and the bytes, assumed to be those of all gradients. None if the number of bytes is unknown, on an
    accelerator (whose links were not measured), and for a few calls."""
    own_ns = explicit_ns(rank)
    if rank.model_parameters is None or own_ns <= 0 or collectives <= FEW_COLLECTIVES or rank.device_type != "cpu":
        return None
    payload_bytes = 2 * (rank.world_size - 1) / rank.world_size * 4 * rank.model_parameters
    stays_ns = own_ns / collectives + payload_bytes / LOOPBACK_BYTES_PER_S * 1e9
    return max(0.0, 1.0 - stays_ns / own_ns)


def _is_unsplit(ddp: DdpFacts) -> bool:
    """Whether all gradients travel in one large piece, so that sending waits for the end of backward."""
    sizes = bucket_bytes(ddp)
    return bool(sizes) and sum(sizes) > ONE_BUCKET_BYTES and max(sizes) > 0.9 * sum(sizes)
