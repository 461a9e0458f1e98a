"""A training -> the values that tuning, probes, benches and gates compare: its means, a usual step, a step's work."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotloop.core.analysis import RankAnalysis
from hotloop.core.benchmarks import ScalingRun
from hotloop.core.comparison import UnitChange
from hotloop.core.errors import HotloopError
from hotloop.core.link_fit import usual_latency_ns
from hotloop.core.measurement import Measurement, StepTimes
from hotloop.core.phases import PHASES
from hotloop.core.recording import FIELD, GAP_FIELDS

from .changes import MeanError, RankSteps, SideSteps, estimate_side_error, half_width, join_ranks
from .facts import Recording
from .process import ProcessAnalysis
from .summary import summarize_breakdown, summarize_memory, summarize_strategy
from .trainings import Training, analyze_run, count_units, find_lead, find_recording, find_unit_drift

SAME_UNITS_RATIO = 0.01
"""Samples and tokens per step that differ by less than this are the same: the last batch of an epoch is short."""


def join_training(training: Training) -> SideSteps:
    """The steady steps of all ranks by phase; processes without a rank step independently."""
    return join_ranks(
        [
            p.phase_steps if p.rank.rank is not None else RankSteps(None, p.phase_steps.weight, p.phase_steps.parts_ns)
            for p in training.processes
        ]
    )


def differ(before: float | None, after: float | None) -> bool:
    """Whether steps contain more or less work; False if a side does not show it."""
    if before is None or after is None:
        return False
    return abs(after - before) > SAME_UNITS_RATIO * max(before, after)


def change_per_unit(
    unit: str, sides: Sequence[SideSteps], counts: tuple[float, float], noise_ratios: Sequence[float | None]
) -> UnitChange:
    """The time of a step over the work in it, on both sides.

    ``noise_ratios`` are the standard errors of ``counts`` over them, for work that was read from only some batches;
    None if unknown, and then there is no interval. The interval does not include how work varies over steps.
    """
    means = [
        int(side.parts_ns.sum()) / (side.steps_count * side.ranks_count) / count
        for side, count in zip(sides, counts, strict=True)
    ]
    errors = [
        _add_noise(estimate_side_error(side, range(len(PHASES)), count), mean, noise_ratio)
        for side, count, mean, noise_ratio in zip(sides, counts, means, noise_ratios, strict=True)
    ]
    return UnitChange(
        unit=unit,
        before_count=counts[0],
        after_count=counts[1],
        before_ns=means[0],
        after_ns=means[1],
        delta_ns=means[1] - means[0],
        half_width_ns=half_width(*errors),
    )


def _add_noise(error: MeanError | None, mean: float, noise_ratio: float | None) -> MeanError | None:
    if error is None or noise_ratio is None:
        return None
    return MeanError(error.variance + (mean * noise_ratio) ** 2, error.freedom)


ReadOthers = Callable[[tuple[float, float] | None], float | None]
"""Unix times in s -> the share of the cores' time that other programs used between them; None if unknown."""
LEAST_PACE_READINGS = 10
"""Fewer timings of the fixed piece of work say nothing about the machine's pace."""


def measure_training(
    training: Training,
    recordings: Sequence[Recording],
    left: Mapping[str, Any],
    read_others_ratio: ReadOthers,
) -> Measurement:
    """Measurements of a trial over its steady steps, and over all of them. ``left`` is what the lead process wrote
    about its losses and pace."""
    rank, memory, breakdown = training.lead.rank, summarize_memory(training), summarize_breakdown(training)
    start_ns = _steady_start_ns(training, recordings)
    return Measurement(
        step_ns=training.analysis.step_ns,
        steady_count=rank.steady_count,
        samples_per_step=count_units(training.processes, "sample"),
        tokens_per_step=count_units(training.processes, "token"),
        peak_bytes=memory.peak_bytes,
        rank_peak_bytes=_largest([process.memory.peak_bytes for process in training.processes]),
        rank_count=len(training.processes),
        others_ratio=read_others_ratio(steady_span_s(training, recordings)),
        pace_ns=_pace_ns(left.get("pace") or (), recordings, training),
        threads_count=rank.torch_threads,
        work_drifts=find_unit_drift(training.processes, training.analysis.unit) is not None,
        # From the moment that torch was loaded to the first steady step, without as many steady steps.
        one_time_ns=None if start_ns is None else max(0, round(start_ns - rank.warmup_count * rank.step_mean_ns)),
        breakdown={name: breakdown.phases[name].mean_ns for name in PHASES},
        losses=tuple(left.get("losses") or ()),
        losses_unseen=str(left.get("unseen", "the trial left no losses")),
        norms=tuple((int(row), value) for row, value in left.get("norms") or ()),
        norms_unseen=str(left.get("norms_unseen", "the trial left no gradient norms")),
        applied=summarize_strategy(training),
        whole_ns=None
        if rank.excluded is None
        else rank.excluded.warmup_ns + round(rank.step_mean_ns * rank.steady_count),
        whole_count=rank.warmup_count + rank.steady_count,
        whole_others_ratio=read_others_ratio(_span_s(training.lead, recordings, 0)),
    )


def steady_span_s(
    training: Training, recordings: Sequence[Recording], host: str | None = None
) -> tuple[float, float] | None:
    """Unix times, in s, between which the lead process's steps were steady; None if unknown.

    They are on the clock of ``host`` if the training has several hosts and that is one of them: samples from there
    match no other clock.
    """
    seen = next((p for p in training.processes if p.identity[0] == host), training.lead)
    process = seen if len(training.hosts) > 1 else training.lead
    return _span_s(process, recordings, process.rank.warmup_count)


def _span_s(seen: ProcessAnalysis, recordings: Sequence[Recording], first: int) -> tuple[float, float] | None:
    """From the row of this number to the last one."""
    process = find_recording(recordings, seen)
    anchor_s = None if process is None else process.process.get("anchor_wall_s")
    if process is None or first >= len(process.rows) or not isinstance(anchor_s, float):
        return None
    start_ns, end_ns = process.rows[first][FIELD["start_ns"]], process.rows[-1][FIELD["end_ns"]]
    return anchor_s + int(start_ns) * 1e-9, anchor_s + int(end_ns) * 1e-9


def list_facts(recordings: Sequence[Recording], names: Sequence[str]) -> dict[str, Any]:
    """What the process that leads the largest training reported about itself."""
    lead = find_lead(recordings, analyze_run(recordings)[0])
    return {name: None if lead is None else lead.process.get(name) for name in names}


def _first_steady_row(training: Training, recordings: Sequence[Recording]) -> Any:
    process, warmup_count = find_lead(recordings, training), training.lead.rank.warmup_count
    return None if process is None or warmup_count >= len(process.rows) else process.rows[warmup_count]


def _steady_start_ns(training: Training, recordings: Sequence[Recording]) -> int | None:
    row = _first_steady_row(training, recordings)
    return None if row is None else int(row[FIELD["start_ns"]])


def _pace_ns(pace: Sequence[tuple[int, float]], recordings: Sequence[Recording], training: Training) -> float | None:
    """Mean time of the fixed piece of work after the steps that settled, without its largest twentieth.

    None if other processes of the training (ranks, loader workers) run at the same time.
    """
    row = _first_steady_row(training, recordings)
    if row is None or len(training.processes) > 1 or any(one.num_workers != 0 for one in training.lead.rank.loaders):
        return None
    found = sorted(ns for index, ns in pace if index >= int(row[FIELD["index"]]))
    kept = found[: len(found) - len(found) // 20]
    return sum(kept) / len(kept) if len(found) >= LEAST_PACE_READINGS else None


def _largest(peaks: Sequence[int | None]) -> int | None:
    """None if one of them is unknown: it could be the largest."""
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and len(known) == len(peaks) else None


MOST_FORWARDS_PER_BACKWARD = 4.0
MOST_OF_ONE_BATCH = 1.5
"""More micro-batches per step than this are accumulation."""
MEMORY_RATIO = 0.8
"""Part of the host's memory that a larger batch may fill."""


def step_times(training: Training) -> StepTimes:
    """The reference of a probe: the means of the process that leads."""
    rank = training.lead.rank
    mean: Mapping[str, float] = rank.mean
    breakdown = rank.breakdown
    exposed: float | None = None
    if rank.ddp is not None and rank.ddp.exposed_comm_ns is not None:
        exposed = rank.ddp.exposed_comm_ns * max(1.0, mean["backwards"])
    rare_forward_ns, rare_other_ns = _rare_ns(rank)
    return StepTimes(
        step_ns=rank.step_mean_ns,
        forward_ns=breakdown.mean_ns("forward") - rare_forward_ns,
        backward_ns=breakdown.mean_ns("backward"),
        optimizer_ns=breakdown.mean_ns("optimizer"),
        input_ns=breakdown.mean_ns("input_wait") + breakdown.mean_ns("h2d"),
        other_ns=breakdown.mean_ns("other") - rare_other_ns,
        apart_ns=breakdown.mean_ns("validation") + breakdown.mean_ns("checkpoint") + rare_forward_ns + rare_other_ns,
        exposed_comm_ns=exposed,
        micro_batches=max(1.0, mean["micro_batches"] or mean["backwards"]),
        noise_ratio=rank.step_noise_ratio,
        largest_factor=_largest_factor(rank),
        batch_size=_batch_size(training),
    )


def _largest_factor(rank: RankAnalysis) -> float:
    """The multiple of the batch at which all of the process's memory, scaled with it, fits; at most joined
    micro-batches."""
    micro_batches = max(rank.mean["micro_batches"], rank.mean["backwards"])
    most = micro_batches if micro_batches > MOST_OF_ONE_BATCH else math.inf
    if not rank.memory_total_bytes or not rank.memory_peak_bytes:
        return min(most, 2.0)
    ranks = max(1, rank.local_world_size or 1)
    return min(most, MEMORY_RATIO * rank.memory_total_bytes / ranks / rank.memory_peak_bytes)


def _rare_ns(rank: RankAnalysis) -> tuple[float, float]:
    """Mean ns per step of forwards without gradients, and of time between the phases, that a usual step does not have.

    A rollout between updates, a plot, a pass that fills a buffer: it comes once per number of samples, and no larger
    batch makes it cheaper. It does not include what counts as validation.
    """
    validation_ns = rank.breakdown.mean_ns("validation")
    columns = [rank.columns[name] for name in GAP_FIELDS if rank.columns.get(name)]
    gaps_ns = [sum(values) for values in zip(*columns, strict=True)]
    forward_ns = _beyond_median_ns(rank.columns.get("nograd_ns", ()))
    other_ns = _beyond_median_ns(gaps_ns)
    in_forward_ns = min(forward_ns, validation_ns)
    forward_ns -= in_forward_ns
    other_ns -= min(other_ns, validation_ns - in_forward_ns)
    return min(forward_ns, rank.breakdown.mean_ns("forward")), min(other_ns, rank.breakdown.mean_ns("other"))


def _beyond_median_ns(column: Sequence[int]) -> float:
    known = [value for value in column if value >= 0]
    return max(0.0, statistics.fmean(known) - statistics.median(known)) if known else 0.0


def _batch_size(training: Training) -> int | None:
    """Samples of one backward; None if they vary, or if many forwards lead to one backward (an episode of reinforcement
    learning, a recurrent cell that is called by hand), whose inputs are not batches."""
    rank = training.lead.rank
    if not rank.samples_per_step or training.lead.units.samples_vary:
        return None
    backwards = max(1.0, rank.mean["micro_batches"], rank.mean["backwards"])
    if rank.mean["forwards"] > MOST_FORWARDS_PER_BACKWARD * backwards:
        return None
    samples = rank.samples_per_step / backwards
    return round(samples) if abs(samples - round(samples)) <= 0.02 * samples else None


def measure_ranks(training: Training, ranks_count: int) -> ScalingRun:
    """Time, work and exposed communication of a step. Raises HotloopError if a different number of ranks trained."""
    ranks, unit = training.analysis.ranks, training.analysis.unit
    if len(ranks) != ranks_count:
        raise HotloopError(
            f"{len(ranks)} processes trained, but {ranks_count} were started; check that the script uses "
            "torchrun's environment"
        )
    joined = join_training(training)
    exposed = [
        rank.ddp.exposed_comm_ns * max(1.0, rank.mean["backwards"])
        for rank in ranks
        if rank.ddp is not None and rank.ddp.exposed_comm_ns is not None
    ]
    return ScalingRun(
        ranks=ranks_count,
        step_ns=int(joined.parts_ns.sum()) / (joined.steps_count * joined.ranks_count),
        unit=unit,
        units_per_step=count_units(training.processes, unit) if unit != "step" else None,
        exposed_ns=sum(exposed) / len(exposed) if len(exposed) == ranks_count else None,
        threads=training.lead.rank.torch_threads,
        latency_ns=_latency_ns(training.lead.rank) if ranks_count > 1 else 0.0,
    )


def _latency_ns(rank: RankAnalysis) -> float | None:
    if rank.ddp is None or not rank.ddp.bucket_sizes:
        return None
    return usual_latency_ns(rank.ddp.backend) * len(rank.ddp.bucket_sizes) * max(1.0, rank.mean["backwards"])


def measure_compute_ns(training: Training) -> float:
    """ns per batch of the lead process's step, not counting the wait for the batch."""
    return measure_step_ns(training) / max(1.0, training.lead.rank.mean["batches"])


def measure_step_ns(training: Training) -> float:
    """Mean step of the lead process without its wait for batches."""
    rank = training.lead.rank
    return rank.step_mean_ns - rank.breakdown.mean_ns("input_wait")
