"""Analysis -> straggler: the rank that the others wait for, what it spends longer on, and in which lines."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import (
    REMOVED_LOW_RATIO,
    Basis,
    Finding,
    Fix,
    Numerics,
    Saving,
    Skipped,
    Value,
    Where,
    saving_of_removal,
    saving_within,
)
from hotloop.core.recording import TIME_FIELDS
from hotloop.core.rules import rule
from hotloop.core.trace_analysis import TraceAnalysis
from hotloop.judge.diagnose.comm import is_distributed, shows_exchange_of_backward, sync_count, waits_ns
from hotloop.judge.diagnose.lines import saving_functions, saving_rank, saving_times_ns
from hotloop.judge.diagnose.loading import batch_places
from hotloop.judge.diagnose.measured import (
    NOISE_MULTIPLE,
    known_places,
    line_places,
    phase_noise_ratio,
    spread_of_own_ratio,
)

LEAST_GAP_RATIO = 0.03
SLOW_PART_RATIO = 1 / 8
"""Up to this part of the ranks of a trace may be reported as late together; if more ranks are late, they are a class of
ranks, not stragglers."""
UNEVEN_CORES_RATIO = 0.2
"""Two processes of one host with the same work may differ this much for harmless reasons: cores that clock higher,
share a cache or are lent to others (measured on healthy gloo runs: up to 0.16 of the step, for an entire run)."""
WAITING_LOW_RATIO, WAITING_MID_RATIO = 0.4, 0.75
"""Rule of thumb: part of the others' wait that is saved if the late rank's own work is unknown."""
MORE_WORK_RATIO = 1.05
DESCHEDULED_RATIO = 0.5
"""If a rank was ready but had no core for this part of its lateness, other programs on the host make it late."""
DESCHEDULED_TEXT = ": it was ready {longer_ms:.3g} ms longer than the others while other threads had its core"
MOSTLY_ONE_PHASE_RATIO = 1.25
"""If all of its extra work is more than this times that of its longest phase, both are reported."""
BLOCKS_COUNT = 8
WAITING_FIELDS = ("backward_ns", "communication_ns")
COMPUTE_FIELDS = ("forward_ns", "backward_ns")
WORK_FIELDS = tuple(field for field in TIME_FIELDS if field not in WAITING_FIELDS)
PHASE_OF_FIELD = {
    "input_wait_ns": "input_wait",
    "iterator_ns": "input_wait",
    "h2d_ns": "h2d",
    "forward_ns": "forward",
    "nograd_ns": "forward",
    "backward_ns": "backward",
    "optimizer_ns": "optimizer",
    "checkpoint_ns": "checkpoint",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreWork:
    """What one rank gets more of per step than each of the others."""

    name: str
    ratio: float | None
    """Its amount over the largest amount of the others; None if they have none of it."""
    is_data: bool
    """Whether it counts samples or tokens, which the loader deals out; False for passes through the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Why one rank comes last. Times in ns per step."""

    slow: RankAnalysis
    by_waiting_ns: float
    """What the next rank waits beyond the slow one: the saving if the slow rank were as fast as the next."""
    mean_ns: float
    """What the other ranks wait beyond it, on average: the time that is lost."""
    by_work_ns: float | None
    """How much longer the slow rank's own work takes than the others'; None if backward cannot be separated."""
    before_sync_ns: float
    """The part of that outside backward, which no exchange with other ranks blurs."""
    field: str
    """The time field in which the slow rank spends most of the difference."""
    field_ns: float
    computing_ns: float
    """The part of its extra work in the model's forward and backward; 0 if the others have a host of their own."""
    more_work: MoreWork | None
    """What the program gives this rank more of than the others."""
    sure_ns: float
    """The part of its extra work that neither uneven cores, nor waiting for a core, nor the noise of the run
    explains."""
    without_core_ns: float | None
    """How much longer the slow rank was ready but had no core, because others used them; None if not recorded."""
    saves: bool
    """Whether blocking-checkpoint reports the checkpoints: then the time of saves counts here as waiting, not as
    work."""


def straggler_on_trace(analysis: TraceAnalysis) -> Finding | Skipped | None:
    """The few ranks that wait least in the collectives that all ranks share, and how much longer the others wait."""
    if len(analysis.ranks) < 2:
        return Skipped(reason="the trace of only one rank was given")
    waits = sorted(analysis.waits, key=lambda one: one.wait_ns)
    if len(waits) < 2 or not analysis.span_ns:
        return Skipped(reason="no collective could be matched across ranks")
    most = max(1, round(len(waits) * SLOW_PART_RATIO))
    count = max(range(1, most + 1), key=lambda at: waits[at].wait_ns - waits[at - 1].wait_ns)
    slow, others = waits[:count], waits[count:]
    gap_ratio = (others[0].wait_ns - slow[-1].wait_ns) / analysis.span_ns
    mean_ratio = (sum(one.wait_ns for one in others) / len(others) - slow[-1].wait_ns) / analysis.span_ns
    if gap_ratio < LEAST_GAP_RATIO:
        return None
    cost_ratio = min(1.0, max(gap_ratio, mean_ratio))
    return Finding(
        title=f"all ranks wait for {_name_ranks([one.rank for one in slow])}: the others spend {mean_ratio:.0%} of the "
        f"time in collectives that {'it has' if count == 1 else 'they have'} not reached",
        phase="communication",
        cost_ns=round(cost_ratio * analysis.step_ns),
        cost_ratio=cost_ratio,
        # If it were as fast as the next slowest, the gap to that rank would be saved.
        saving=saving_of_removal(cost_ratio, gap_ratio),
        evidence={
            "rank": slow[0].rank if count == 1 else [one.rank for one in slow[:8]],
            "last_arrivals": sum(one.last_arrivals_count for one in slow),
            "collectives": analysis.matched_count,
            "others_wait_ns": [one.wait_ns for one in others[:8]],
        },
        fix=Fix(technique="balance-ranks", settings={"rank": slow[0].rank}),
        ranks=tuple(sorted(one.rank for one in slow if one.rank is not None)),
    )


def _name_ranks(ranks: Sequence[int | None]) -> str:
    """
    >>> _name_ranks([3]), _name_ranks([7, 62]), _name_ranks([4, 3, 2, 1, 0])
    ('rank 3', 'ranks 7 and 62', 'ranks 0, 1, 2 and 2 more')
    """
    known = sorted(rank for rank in ranks if rank is not None)
    if not known:
        return "one rank"
    shown = [str(rank) for rank in known[:3]] + ([f"{len(known) - 3} more"] if len(known) > 3 else [])
    words = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"rank{'s' if len(known) > 1 else ''} {words}"


@rule("straggler", "all ranks wait for one slow rank", on_trace=straggler_on_trace)
def judge_straggler(analysis: Analysis) -> Finding | Skipped | None:
    """
    ## What it does
    Reports the rank that the others wait for, the phase in which it takes longer, and the lines of that phase.

    ## Why it costs
    Gradients are averaged over all ranks, so every step takes as long as it does on the slowest rank. The other ranks
    lose the time that they wait.

    ## How to recognize it
    Step times show nothing, because the exchange makes them equal. Each rank's exposed communication consists of
    transfer and waiting; the rank that clearly has the least of it arrives last. The rule reports that rank only if its
    own work also takes longer, by a large part of the time that the others wait.

    If one rank has more to compute, the forecast distributes that work over all ranks of the host instead of removing
    it.

    On the cores of one host, ranks with the same work may differ by a fifth for harmless reasons. Unless the rank has
    more samples or tokens, only the excess over a fifth, phase by phase, counts in the low forecast, and so in the
    severity. If the rank was ready for most of that time while other threads had its core (the kernel counts it), the
    severity is info: something else on the host makes the rank late. The time that writing checkpoints takes counts in
    blocking-checkpoint; only the remaining time counts here. If the program gives the rank more samples or tokens than
    the others, the line that makes its batches comes first.

    ## What to do
    Look at the reported phase: an uneven share of the data or longer samples (balance them, or sort by length over all
    ranks), work that only one rank does (logging, validation, checkpoints on rank 0), a slower disk or a busier machine
    (move the rank).

    ## When it is wrong
    If ranks take turns at being last, the average shows no straggler, although the jitter costs time. A rank on slower
    hardware cannot be fixed in the code.
    """
    if not is_distributed(analysis):
        return None
    if len(analysis.ranks) < 2:
        return Skipped(reason="only one of the ranks was recorded")
    if all(r.ddp is None and r.mean.get("communication_ns", 0.0) <= 0 for r in analysis.ranks):
        return Skipped(reason="no communication between the ranks was observed")
    gap = find_gap(analysis)
    # With every outlier: one long step of one rank does not make it a straggler.
    noise = max(_noise_ratio(r, gap.saves) for r in analysis.ranks)
    gap_ratio = gap.by_waiting_ns / analysis.step_ns
    if gap_ratio < max(LEAST_GAP_RATIO, 3.0 * noise):
        return None
    work_ns = gap.by_work_ns
    if work_ns is not None and work_ns < 0.25 * gap.by_waiting_ns:
        # The others wait, but this rank does not work longer: the ranks measure differently, and none is a straggler.
        return None
    cost_ratio = min(1.0, max(gap.mean_ns, gap.by_waiting_ns) / analysis.step_ns)
    slow, more = gap.slow, gap.more_work
    phase = PHASE_OF_FIELD.get(gap.field, "other")
    evidence: dict[str, Value] = {
        "rank": slow.rank,
        "host": slow.host,
        "longer_in": phase,
        "longer_ns_per_step": round(gap.field_ns),
        "others_wait_ns_per_step": round(gap.mean_ns),
        "own_work_longer_ns_per_step": None if work_ns is None else round(work_ns),
        "longer_without_core_ns_per_step": None if gap.without_core_ns is None else round(gap.without_core_ns),
    }
    if more is not None:
        evidence["more_of"] = more.name
        evidence["times_the_others"] = None if more.ratio is None else round(more.ratio, 2)
    name = "a rank" if slow.rank is None else f"rank {slow.rank}"
    longer_ms = (gap.without_core_ns or 0.0) * 1e-6
    return Finding(
        title=f"all ranks wait for {name}, which {_describe_longer(gap, phase)}"
        + (DESCHEDULED_TEXT.format(longer_ms=longer_ms) if _is_descheduled(gap) else ""),
        phase=phase,
        cost_ns=round(cost_ratio * analysis.step_ns),
        cost_ratio=cost_ratio,
        saving=_forecast(analysis, gap, cost_ratio),
        evidence=evidence,
        where=_where(gap),
        fix=Fix(
            technique="balance-ranks",
            settings={"rank": slow.rank, "phase": phase},
            numerics=None if phase == "input_wait" or (more and more.is_data) else Numerics.EXACT,
        ),
        ranks=() if slow.rank is None else (slow.rank,),
    )


def _forecast(analysis: Analysis, gap: Gap, cost_ratio: float) -> Saving:
    """The time that the other ranks no longer wait once this rank is as fast as they are."""
    basis = Basis.SIMULATED
    if gap.by_work_ns is None:
        low_ns, mid_ns = WAITING_LOW_RATIO * gap.by_waiting_ns, WAITING_MID_RATIO * gap.by_waiting_ns
        basis = Basis.RULE_OF_THUMB
    else:
        # The others' wait includes the late rank's slower backward while transfers run; its work before that does not.
        # Otherwise, the saving is at most its extra work, and at most the time that the next rank waits for it.
        is_before = gap.before_sync_ns >= 0.5 * gap.by_waiting_ns
        mid_ns = min(gap.before_sync_ns if is_before else gap.by_work_ns, gap.by_waiting_ns)
        low_ns = REMOVED_LOW_RATIO * mid_ns
    low_ns = 0.0 if _is_descheduled(gap) else min(low_ns, gap.sure_ns)
    # Evened out, the others get what this rank loses: samples or tokens, or the model's extra time on one host (long
    # sequences count as samples, too: speech-ctc in benchmarks/results/fresh saved 0.09 of a forecast 0.35).
    evened_ns = mid_ns if gap.more_work is not None else min(mid_ns, gap.computing_ns)
    if mid_ns > 0:
        left = 1.0 - evened_ns / mid_ns / len(analysis.ranks)
        low_ns, mid_ns = left * low_ns, left * mid_ns
    return saving_within(cost_ratio, low_ns / analysis.step_ns, mid_ns / analysis.step_ns, cost_ratio, basis)


def _is_descheduled(gap: Gap) -> bool:
    """Whether the slow rank was ready for most of its lateness, while other threads had its core."""
    late_ns = gap.by_waiting_ns if gap.by_work_ns is None else min(gap.by_waiting_ns, gap.by_work_ns)
    return (gap.without_core_ns or 0.0) >= DESCHEDULED_RATIO * late_ns


def _describe_longer(gap: Gap, phase: str) -> str:
    """How much longer the late rank works, in which phase, and what it has more of."""
    longer = f"spends {gap.field_ns * 1e-6:.3g} ms longer per step in {phase}"
    if gap.by_work_ns is not None and gap.by_work_ns > MOSTLY_ONE_PHASE_RATIO * gap.field_ns:
        longer = f"works {gap.by_work_ns * 1e-6:.3g} ms longer per step, {gap.field_ns * 1e-6:.3g} ms of it in {phase}"
    if gap.more_work is None:
        return longer
    if gap.more_work.ratio is None:
        return f"is the only one with {gap.more_work.name} and {longer}"
    return f"has {gap.more_work.ratio:.3g} times the {gap.more_work.name} and {longer}"


def find_gap(analysis: Analysis) -> Gap:
    """The rank that waits least, and how much longer the others wait. Needs two ranks or more."""
    saves = saving_rank(analysis) is not None
    saving = [saving_times_ns(rank) if saves else {} for rank in analysis.ranks]
    # A rank that saves is late only because of that; without its saves, it would wait for the rank that is last then.
    waited = [wait_ns + sum(own.values()) for wait_ns, own in zip(waits_ns(analysis), saving, strict=True)]
    order = sorted(range(len(analysis.ranks)), key=lambda i: waited[i])
    slow = analysis.ranks[order[0]]
    others = [analysis.ranks[i] for i in order[1:]]
    waits = [waited[i] for i in order]
    worked = {
        field: [max(0.0, analysis.ranks[i].mean.get(field, 0.0) - saving[i].get(field, 0.0)) for i in order]
        for field in WORK_FIELDS
    }
    differences = {field: values[0] - sum(values[1:]) / len(others) for field, values in worked.items()}
    before_sync_ns = sum(differences.values())
    in_backward_ns = _beyond_others([_backward_compute_ns(rank) for rank in (slow, *others)])
    if in_backward_ns is not None:
        differences["backward_ns"] = in_backward_ns
    is_told = in_backward_ns is not None or all(r.ddp is None for r in analysis.ranks)
    by_work = sum(differences.values()) if is_told else None
    field = max(differences, key=lambda name: differences[name])
    more_work = _more_work(slow, others)
    # A rank with more work takes longer, and so also delays the others longer.
    delays_ns = [None if r.run_delay_ratio is None else r.run_delay_ratio * r.step_mean_ns for r in (slow, *others)]
    without_core_ns = None if more_work is not None else _beyond_others(delays_ns)
    # Saves come in bursts; those that blocking-checkpoint reports add no noise to the remaining work.
    fields = tuple(name for name in WORK_FIELDS if not (saves and name == "checkpoint_ns"))
    return Gap(
        slow=slow,
        by_waiting_ns=waits[1] - waits[0],
        mean_ns=sum(waits[1:]) / len(others) - waits[0],
        by_work_ns=by_work,
        before_sync_ns=before_sync_ns,
        field=field,
        field_ns=differences[field],
        computing_ns=sum(max(0.0, differences.get(name, 0.0)) for name in COMPUTE_FIELDS)
        if all(rank.host == slow.host for rank in others)
        else 0.0,
        more_work=more_work,
        sure_ns=max(
            0.0,
            _sure_ns(slow, others, differences, {field: values[0] for field, values in worked.items()})
            - _unrest_ns(slow, others, fields)
            - max(0.0, without_core_ns or 0.0),
        ),
        without_core_ns=without_core_ns,
        saves=saves,
    )


def _noise_ratio(rank: RankAnalysis, saves: bool) -> float:
    """With every outlier; if another rule reports checkpoints, of the work without them and without waiting."""
    if not saves:
        return max(rank.step_noise_ratio, spread_of_own_ratio(rank, TIME_FIELDS))
    fields = [name for name in WORK_FIELDS if name != "checkpoint_ns"]
    left_out = [name for name in TIME_FIELDS if name not in fields]
    return max(min(rank.step_noise_ratio, phase_noise_ratio(rank, left_out)), spread_of_own_ratio(rank, fields))


def _where(gap: Gap) -> tuple[Where, ...]:
    """The lines that make the rank's batches, if these are larger than the others'; then those of its longest phase."""
    own = batch_places(gap.slow) if gap.more_work is not None and gap.more_work.is_data else ()
    savers = saving_functions(gap.slow) if gap.saves else frozenset()
    lines = [line for line in gap.slow.lines.get(gap.field, ()) if (line.where.file, line.where.function) not in savers]
    return known_places(*own, *line_places(lines, 0.2, 2))[:3]


def _sure_ns(
    slow: RankAnalysis, others: list[RankAnalysis], differences: Mapping[str, float], worked_ns: Mapping[str, float]
) -> float:
    """Extra work per step beyond what a slower core of the same host explains for the same work."""
    same_cores = slow.device_type == "cpu" and all(r.host == slow.host for r in others)
    if not same_cores or _more_work(slow, others) is not None:
        return sum(differences.values())
    sure_ns = 0.0
    for field, longer_ns in differences.items():
        usual_ns = max(0.0, worked_ns.get(field, 0.0) - longer_ns)
        if field == "backward_ns":
            usual_ns = max(0.0, (_backward_compute_ns(slow) or 0.0) - longer_ns)
        sure_ns += max(0.0, longer_ns - UNEVEN_CORES_RATIO * usual_ns)
    return sure_ns


def _beyond_others(values: Sequence[float | None]) -> float | None:
    """By how much the first value, the slow rank's, exceeds the mean of the others; None if one is unknown."""
    known = [value for value in values if value is not None]
    return known[0] - sum(known[1:]) / (len(known) - 1) if len(known) == len(values) else None


def _more_work(slow: RankAnalysis, others: list[RankAnalysis]) -> MoreWork | None:
    """What the program itself gives this rank more of per step than the others; the most uneven first."""
    found: list[MoreWork] = []
    for name, own in _amounts(slow).items():
        rest = [_amounts(rank)[name] for rank in others]
        known = [value for value in rest if value is not None]
        if own is None or len(known) < len(rest) or own <= MORE_WORK_RATIO * max(known):
            continue
        ratio = own / max(known) if max(known) > 0 else None
        found.append(MoreWork(name=name, ratio=ratio, is_data=name in ("samples", "tokens")))
    return max(found, key=lambda more: more.ratio or 0.0, default=None)


def _amounts(rank: RankAnalysis) -> dict[str, float | None]:
    return {
        "tokens": rank.tokens_per_step,
        "samples": rank.samples_per_step,
        "forwards": rank.mean.get("forwards"),
        "backwards": rank.mean.get("backwards"),
        "forwards without gradients": rank.mean.get("nograd_forwards"),
    }


def _unrest_ns(slow: RankAnalysis, others: list[RankAnalysis], fields: tuple[str, ...]) -> float:
    """Two standard errors of the difference in work, from means of blocks of steps: bursts outlast single steps."""
    steps = min(len(r.columns.get(field, ())) for r in (slow, *others) for field in fields)
    length = steps // BLOCKS_COUNT
    if length < 1:
        return 0.0
    differences = []
    for block in range(BLOCKS_COUNT):
        part = slice(block * length, (block + 1) * length)
        work = [sum(sum(r.columns[field][part]) for field in fields) / length for r in (slow, *others)]
        differences.append(work[0] - sum(work[1:]) / len(others))
    return NOISE_MULTIPLE * statistics.stdev(differences) / math.sqrt(BLOCKS_COUNT)


def _backward_compute_ns(rank: RankAnalysis) -> float | None:
    """Time per step in which backward computes; None if it cannot be separated from waiting for other ranks."""
    if shows_exchange_of_backward(rank):
        return rank.mean.get("backward_ns", 0.0)
    if rank.ddp is None or rank.ddp.exposed_comm_ns is None:
        return None
    backward_ns = rank.mean.get("backward_ns", 0.0)
    return max(0.0, backward_ns - rank.ddp.exposed_comm_ns * sync_count(rank))
