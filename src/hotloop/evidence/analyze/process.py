"""One process's recording -> its RankAnalysis, with what a report says about the process itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hotloop.core.analysis import Line, OptimizerFacts, RankAnalysis, RunStart
from hotloop.core.applied import AppliedTechnique
from hotloop.core.findings import Where
from hotloop.core.noise import noise_of_mean_ratio
from hotloop.core.phases import PHASES, Excluded
from hotloop.core.recording import DEVICE_TIME_FIELDS, STEP_FIELDS
from hotloop.core.report import DevicePhase, Health, MemorySummary, Overhead, Timeline

from .batch_source import find_batch_statement, mark_prefetches
from .changes import RankSteps
from .facts import (
    Fact,
    Recording,
    build_compile,
    build_ddp,
    build_loaders,
    build_optimizers,
    find_main_model,
    last_of_kind,
    of_kind,
    read_applied,
    read_bool,
    read_count,
    read_float,
    read_health,
    read_idle_cores,
    read_int,
    read_items,
    read_map,
    read_network,
    read_overhead,
    read_run_delay_ratio,
    read_text,
    read_where,
)
from .lines import (
    SampledLines,
    collect_lines,
    collect_start_lines,
    collect_thread_lines,
    plays_environment,
)
from .memory import measure_memory
from .partition import (
    Tail,
    ValidationTime,
    build_breakdown,
    charge_waits,
    charged_ratio,
    find_tail,
    find_validation,
    host_column,
    split_phases,
    trains_on_others,
    validation_in_gaps,
)
from .segments import (
    IDENTITY_FIELDS,
    LEVEL_FIELDS,
    MAYBE_UNKNOWN_FIELDS,
    UNSEEN_FIELDS,
    BoolColumn,
    IntColumn,
    StepEnds,
    Steps,
    build_steps,
    find_step_ends,
)
from .source import SourceFiles
from .stats import FloatColumn, Slope, per_step_values, weighted_mean_std, weighted_quantiles
from .steady import Steady, find_steady
from .units import Units, measure_units

MAX_COLUMN_LENGTH = 100_000
"""Columns of longer runs are a fair sample of this many steps, in order; means and shares always use all steps."""
MAX_TIMELINE_BUCKETS = 200
LONG_TAIL_RATIO = 0.5
"""If more than this share of a recording comes after the last step, and as much shows no known work, it is reported."""
PEAK_PARTS = ("start", "training", "validation")
TOLD_DELAY_RATIO = 0.1
"""More than this share of the steady steps without a core is reported."""
TOLD_WAITS_RATIO = 0.05
"""More than this share of the steady steps in which the host waits for the device is reported."""
NOT_SUMMED_FIELDS = frozenset((*IDENTITY_FIELDS, *LEVEL_FIELDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessAnalysis:
    """One training process: ``rank`` is what the rules judge, the rest is what else the report says about it."""

    rank: RankAnalysis
    ended: str | None
    """How the process reported that it ended; None if it could not (killed, or still running)."""
    closed: bool
    lost_rows: int
    tail_ns: int | None
    time_to_first_step_ns: int | None
    """From the start of the process to the end of its first step."""
    step_p95_ns: int
    step_cv_ratio: float | None
    batches_per_step: float | None
    """Loader batches that feed a backward; None without a DataLoader."""
    units: Units
    memory: MemorySummary
    timeline: Timeline
    line_samples: Mapping[str, int]
    """Stack samples of every time field, including those that no kept line names."""
    overhead: Overhead | None
    device_phases: tuple[DevicePhase, ...]
    """Phases whose time on the device was measured in some of the steady steps."""
    health: tuple[Health, ...]
    applied: tuple[AppliedTechnique, ...]
    """The changes that a strategy made in this process."""
    begin_wall_s: float | None
    """Wall clock when its first row began; None if unknown."""
    end_wall_s: float | None
    parent_pid: int | None
    argv: tuple[str, ...]
    trained_ns: int
    """Time of all its steps."""
    identity: tuple[Any, ...]
    """As in ``identify``; the host comes first."""
    ends: StepEnds
    last_sign_ns: int
    """Clock of the recording at its last row or fact."""
    anchor_wall_s: float | None
    """Wall clock at the zero of the recording's clock."""
    run_id: str | None
    """The launcher's name of the job on all nodes and in all attempts; None if it gives none."""
    phase_steps: RankSteps
    """The steady steps by PHASES; their means are those of the breakdown."""


@dataclass(frozen=True, slots=True)
class _Work:
    """The steps of one process and what both its analysis and that of its rank are made from."""

    process: Fact
    facts: Sequence[Fact]
    steps: Steps
    steady: Steady
    validation: ValidationTime
    phases: Mapping[str, IntColumn]
    means: Mapping[str, float]
    """Per steady step, by field."""
    step_ns: FloatColumn
    anchor: OptimizerFacts | None
    optimizers: tuple[OptimizerFacts, ...]
    units: Units
    memory: MemorySummary
    memory_slope: Slope | None
    tail: Tail
    lines: SampledLines
    thread_lines: tuple[tuple[Line, ...], float | None]
    files: SourceFiles
    anchor_wall_s: float | None

    @property
    def base(self) -> BoolColumn:
        return self.steady.mask

    @property
    def weight(self) -> IntColumn:
        return self.steps.weight[self.base]


def analyze_process(recording: Recording, files: SourceFiles | None = None) -> ProcessAnalysis | None:
    """What one process did; None if it never completed a step.

    ``files`` reads the source lines that stack samples name (one for a whole run, so that each file is read once).
    """
    steps = charge_waits(build_steps(recording.rows, closed=recording.closed))
    if not steps.count:
        return None
    work = _read_work(recording, steps, files or SourceFiles())
    process, facts, steady, base, weight = work.process, work.facts, work.steady, work.base, work.weight
    rank = _analyze_rank(work)
    step_mean_ns, step_std_ns = weighted_mean_std(work.step_ns, weight)
    _, step_p95_ns = weighted_quantiles(work.step_ns, weight, (0.5, 0.95))
    batches, anchor_wall_s = work.means["micro_batches"], work.anchor_wall_s
    trained_ns = int(steps.step_ns.sum())
    return ProcessAnalysis(
        rank=rank,
        ended=read_text(last_of_kind(facts, "end"), "ended"),
        closed=recording.closed,
        lost_rows=recording.lost_rows,
        tail_ns=work.tail.ns,
        time_to_first_step_ns=_time_to_first_step(process, steps),
        step_p95_ns=round(step_p95_ns),
        step_cv_ratio=step_std_ns / step_mean_ns if step_mean_ns > 0 and steady.steady_count > 1 else None,
        batches_per_step=batches if batches > 0 else None,
        units=work.units,
        memory=work.memory,
        timeline=_build_timeline(read_int(process, "rank"), steps, base, work.phases),
        line_samples=work.lines.samples,
        overhead=read_overhead(facts, trained_ns),
        device_phases=_device_phases(steps, base),
        health=_health(steps, steady, work.anchor, rank, facts),
        applied=read_applied(facts),
        begin_wall_s=None if anchor_wall_s is None else anchor_wall_s + int(steps.columns["start_ns"][0]) * 1e-9,
        end_wall_s=None if anchor_wall_s is None else anchor_wall_s + int(steps.columns["end_ns"][-1]) * 1e-9,
        parent_pid=read_int(process, "ppid"),
        argv=tuple(a for a in read_items(process, "argv") if isinstance(a, str)),
        trained_ns=trained_ns,
        identity=identify(process),
        ends=find_step_ends(steps),
        last_sign_ns=max([steps.end_ns, *(t for fact in facts if (t := read_count(fact, "t")) is not None)]),
        anchor_wall_s=anchor_wall_s,
        run_id=read_text(process, "run_id"),
        phase_steps=RankSteps(
            index=steps.first_row[base],
            weight=weight,
            parts_ns=np.stack([work.phases[name][base] for name in PHASES], axis=1),
        ),
    )


def identify(process: Fact) -> tuple[Any, ...]:
    """A process's identity within a run: process ids, and even names, of different hosts may be equal."""
    return tuple(process.get(key) for key in ("host", "pid", "restart", "rank", "anchor_wall_s"))


def _read_work(recording: Recording, steps: Steps, files: SourceFiles) -> _Work:
    process, facts = recording.process, [f for f in recording.facts if isinstance(f, Mapping)]
    steady = find_steady(steps)
    base = steady.mask
    validation = find_validation(steps, plays=plays_environment(facts))
    optimizers = build_optimizers(facts, steps.optimizer_steps)
    memory, slope = measure_memory(steps, base, facts, read_count(process, "memory_total_bytes"))
    first_row, last_row = int(steps.first_row[base].min()), int(steps.last_row[base].max())
    return _Work(
        process=process,
        facts=facts,
        steps=steps,
        steady=steady,
        validation=validation,
        phases=split_phases(steps, validation),
        means={name: _mean_per_step(steps, name, base) for name in STEP_FIELDS},
        step_ns=per_step_values(steps.step_ns[base], steps.weight[base]),
        anchor=next((o for o in optimizers if o.index == steps.anchor_index), None),
        optimizers=optimizers,
        units=measure_units(steps, base, validation.is_validating),
        memory=memory,
        memory_slope=slope,
        tail=find_tail(steps),
        lines=collect_lines(
            facts,
            first_row,
            last_row,
            files,
            read_text(process, "cwd") or "",
            trains_on_others=trains_on_others(steps, validation),
        ),
        files=files,
        thread_lines=collect_thread_lines(facts, files, read_text(process, "cwd") or ""),
        anchor_wall_s=read_float(process, "anchor_wall_s"),
    )


def _analyze_rank(work: _Work) -> RankAnalysis:
    steps, steady, base, weight, facts = work.steps, work.steady, work.base, work.weight, work.facts
    anchor, slope = work.anchor, work.memory_slope
    start_ns, end_ns = int(steps.columns["start_ns"][base].min()), int(steps.columns["end_ns"][base].max())
    step_mean_ns, _ = weighted_mean_std(work.step_ns, weight)
    step_median_ns, _ = weighted_quantiles(work.step_ns, weight, (0.5, 0.95))
    model = find_main_model(facts)
    network_rates, network_speeds = read_network(facts, start_ns, end_ns)
    scaler, autocast = last_of_kind(facts, "scaler"), last_of_kind(facts, "autocast")
    checkpointing = last_of_kind(facts, "checkpointing")
    return RankAnalysis(
        applied=tuple(dict.fromkeys(one.technique for one in read_applied(facts) if one.is_applied)),
        rank=read_int(work.process, "rank"),
        local_rank=read_int(work.process, "local_rank"),
        host=read_text(work.process, "host") or "?",
        pid=read_int(work.process, "pid") or 0,
        restart=read_count(work.process, "restart") or 0,
        world_size=max(1, read_count(work.process, "world_size") or 1),
        local_world_size=read_count(work.process, "local_world_size"),
        anchor="backward" if steps.anchor_index is None else (anchor.name if anchor else "optimizer"),
        steps=steps.count,
        skipped_steps=steps.skipped_count,
        steady_count=steady.steady_count,
        warmup_count=steady.warmup_count,
        step_mean_ns=step_mean_ns,
        step_median_ns=step_median_ns,
        step_noise_ratio=noise_of_mean_ratio(work.step_ns.tolist(), weight.tolist()),
        breakdown=build_breakdown(work.phases, steps.weight, base),
        mean=work.means,
        columns=StepColumns(replace(steps, columns={**steps.columns, "validations": work.validation.passes}), base),
        excluded=_find_excluded(work.process, steps, steady, work.phases, work.tail),
        warmup_columns=StepColumns(steps, steady.warmup_mask),
        samples_per_step=work.units.samples_per_step,
        tokens_per_step=work.units.tokens_per_step,
        padding_ratio=work.units.padding_ratio,
        padding_to_longest_ratio=work.units.padding_to_longest_ratio,
        lines=mark_prefetches(work.lines.by_field, work.files),
        validation_ns=validation_in_gaps(work.validation, steps.weight, base),
        loaders=build_loaders(facts),
        optimizers=work.optimizers,
        ddp=build_ddp(facts, partial(_holds_row, steps, base)),
        compile=build_compile(facts, max(0.0, work.means["compile_ns"]), partial(_steps_before, steps)),
        autocast_dtype=read_text(autocast, "dtype"),
        scaler_where=read_where(scaler.get("where")),
        scaler_enabled=read_bool(scaler, "enabled"),
        checkpointing=True if checkpointing else None,
        checkpointing_where=read_where(checkpointing.get("where")),
        model=read_text(model, "class"),
        model_dtype=read_text(model, "dtype"),
        model_parameters=read_count(model, "parameters"),
        model_is_recurrent=read_bool(model, "recurrent"),
        start=_find_start(facts, steps, work.files, work.process),
        dense_table=_read_pair(model, "dense_table"),
        table_rows=read_count(last_of_kind(facts, "table_rows") or {}, "per_backward"),
        settings=tuple(one for one in read_items(work.process, "settings") if isinstance(one, str)),
        settings_where=_read_setting_places(facts),
        hooks_where=tuple(w for one in read_items(model, "hooks") if (w := read_where(one)) is not None),
        model_is_sharded=read_bool(model, "sharded"),
        device_type=_device_type(read_text(model, "device"), anchor, read_text(work.process, "accelerator")),
        cores=read_count(work.process, "cores"),
        torch_threads=read_count(work.process, "torch_threads"),
        memory_total_bytes=work.memory.total_bytes,
        memory_peak_bytes=work.memory.peak_bytes,
        memory_growth_bytes_per_step=None if slope is None else slope.per_x,
        memory_growth_noise_bytes_per_step=None if slope is None else slope.noise_per_x,
        network_bytes_per_s=network_rates,
        network_speed_bytes_per_s=network_speeds,
        batch_where=find_batch_statement(work.lines.by_field, work.files),
        run_delay_ratio=read_run_delay_ratio(facts, start_ns, end_ns),
        idle_cores=read_idle_cores(facts, start_ns, end_ns),
        peaks_bytes=_read_peaks(facts),
        thread_lines=work.thread_lines[0],
        threads_at_work=work.thread_lines[1],
        device_wait_ratio=charged_ratio(steps, base),
        ops=last_of_kind(facts, "ops") or None,
        products=last_of_kind(facts, "products") or None,
    )


class StepColumns(Mapping[str, Sequence[int]]):
    """Every field of the steady steps as a list, one entry per step, made on demand.

    A block counts as its steps, which share its sums. Runs of more than MAX_COLUMN_LENGTH steady steps are sampled.
    """

    def __init__(self, steps: Steps, base: BoolColumn) -> None:
        entries = np.flatnonzero(base)
        weight = steps.weight[entries]
        reach = np.cumsum(weight)
        count = int(weight.sum())
        picked = np.arange(count)
        if count > MAX_COLUMN_LENGTH:
            # A regular stride would always or never hit events that recur with a period; a seeded draw is fair and the
            # same every time.
            draw = np.random.default_rng(0).random(MAX_COLUMN_LENGTH)
            edges = np.linspace(0, count, MAX_COLUMN_LENGTH + 1)
            picked = np.minimum((edges[:-1] + draw * np.diff(edges)).astype(np.int64), count - 1)
        holder = np.searchsorted(reach, picked, side="right")
        self._columns, self._entries, self._weight = steps.columns, entries[holder], weight[holder]
        self._place = picked - (reach - weight)[holder]

    def __getitem__(self, name: str) -> Sequence[int]:
        values = self._columns[name][self._entries]
        if name not in NOT_SUMMED_FIELDS:
            whole, rest = np.divmod(values, self._weight)
            # The remainder is dealt out evenly, so that the steps of a block add up to the block.
            share = whole + (self._place + 1) * rest // self._weight - self._place * rest // self._weight
            values = np.where(values < 0, values, share)
        steps: list[int] = values.tolist()
        return steps

    def __iter__(self) -> Iterator[str]:
        return iter(STEP_FIELDS)

    def __len__(self) -> int:
        return len(STEP_FIELDS)


def _mean_per_step(steps: Steps, name: str, base: BoolColumn) -> float:
    """Mean per steady step; for a field that may be unknown, over the steps where it is known, else UNKNOWN (-1)."""
    column, weight = steps.columns[name][base], steps.weight[base]
    if name in MAYBE_UNKNOWN_FIELDS:
        known = column >= 0
        if not known.all():
            column, weight = column[known], weight[known]
        if not len(column):
            return -1.0
    if name in NOT_SUMMED_FIELDS:
        return float(np.average(column, weights=weight))
    return int(column.sum()) / int(weight.sum())


def _device_phases(steps: Steps, base: BoolColumn) -> tuple[DevicePhase, ...]:
    """Only some steps are timed on the device, so the host's time is taken from the same steps."""
    found = []
    for host_field, device_field in DEVICE_TIME_FIELDS.items():
        known = base & (steps.columns[device_field] >= 0)
        count = int(steps.weight[known].sum())
        device_ns = int(steps.columns[device_field][known].sum())
        host_ns = int(host_column(steps.columns, host_field)[known].sum())
        if count and (device_ns or host_ns):
            found.append(
                DevicePhase(
                    phase=host_field.removesuffix("_ns"),
                    device_mean_ns=round(device_ns / count),
                    host_mean_ns=round(host_ns / count),
                    steps_count=count,
                )
            )
    return tuple(found)


def _holds_row(steps: Steps, base: BoolColumn, row: int) -> bool:
    """Whether a row, given by its number, belongs to the entries of ``base``."""
    entry = int(np.searchsorted(steps.last_row, row))
    return entry < len(base) and bool(base[entry] and steps.first_row[entry] <= row)


def _steps_before(steps: Steps, time_ns: float) -> int:
    """Steps that were over at a time of the recording's clock, in ns; fewer if hooks rested around it."""
    return int(steps.weight[steps.columns["end_ns"] <= time_ns].sum())


def _time_to_first_step(process: Fact, steps: Steps) -> int | None:
    """From the start of the process to the end of its first step, in ns; None without both clocks."""
    anchor_s, start_s = read_float(process, "anchor_wall_s"), read_float(process, "process_start_wall_s")
    if anchor_s is None or start_s is None or anchor_s < start_s:
        return None
    return round((anchor_s - start_s) * 1e9) + int(steps.columns["end_ns"][0])


def _read_pair(fact: Fact, key: str) -> tuple[int, int] | None:
    pair = [one for one in read_items(fact, key) if isinstance(one, int) and not isinstance(one, bool) and one > 0]
    return (pair[0], pair[1]) if len(pair) == 2 else None


def _read_setting_places(facts: Sequence[Fact]) -> dict[str, Where]:
    places: dict[str, Where] = {}
    for fact in of_kind(facts, "setting_place"):
        name, where = read_text(fact, "setting"), read_where(fact.get("where"))
        if name is not None and where is not None:
            places.setdefault(name, where)
    return places


def _read_peaks(facts: Sequence[Fact]) -> dict[str, int]:
    peaks = read_map(last_of_kind(facts, "memory"), "peaks")
    return {name: n for name in PEAK_PARTS if (n := read_count(peaks, name))}


def _find_start(facts: Sequence[Fact], steps: Steps, files: SourceFiles, process: Fact) -> RunStart | None:
    """None if the first rows were lost, or the recording does not contain the time before them."""
    if not of_kind(facts, "start") or int(steps.columns["index"][0]) != 0:
        return None
    before_ns = int(steps.columns["start_ns"][0])
    usual_ns = int(np.median(steps.step_ns))
    return RunStart(
        before_ns=max(0, before_ns),
        first_step_ns=max(0, int(steps.step_ns[0]) - usual_ns),
        lines=collect_start_lines(facts, files, read_text(process, "cwd") or ""),
    )


def _find_excluded(
    process: Fact, steps: Steps, steady: Steady, phases: Mapping[str, IntColumn], tail: Tail
) -> Excluded:
    """The part of the run outside its steady steps; what is neither warm-up nor tail came later."""
    steady_ns = int(steps.step_ns[steady.mask].sum())
    warmup_ns = int(steps.step_ns[steady.warmup_mask].sum())
    tail_ns = tail.ns or 0
    later_ns = max(0, steps.end_ns - steps.begin_ns - steady_ns - warmup_ns - (steps.tail_ns or 0))
    total_ns = warmup_ns + later_ns + tail_ns
    first_step_ns = _time_to_first_step(process, steps)
    return Excluded(
        count=steps.count - steady.steady_count,
        total_ns=total_ns,
        ratio=total_ns / max(1, total_ns + steady_ns),
        warmup_count=steady.warmup_count,
        warmup_ns=warmup_ns,
        later_count=steady.deep_count,
        later_ns=later_ns,
        tail_ns=tail_ns,
        tail_phase=tail.phase,
        tail_phase_ns=tail.phase_ns,
        startup_ns=None
        if first_step_ns is None
        else max(0, first_step_ns - int(steps.columns["end_ns"][0]) + steps.begin_ns),
        phase_ns={name: int(phases[name][~steady.mask].sum()) for name in PHASES},
        compile_ns=int(np.maximum(steps.columns["compile_ns"][~steady.mask], 0).sum()),
    )


def _build_timeline(rank: int | None, steps: Steps, base: BoolColumn, phases: Mapping[str, IntColumn]) -> Timeline:
    """All steps in at most MAX_TIMELINE_BUCKETS buckets of about equal step counts."""
    number = np.cumsum(steps.weight) - steps.weight
    bucket = number * min(MAX_TIMELINE_BUCKETS, steps.count) // steps.count
    starts = np.flatnonzero(np.diff(bucket, prepend=-1))
    weight = np.add.reduceat(steps.weight, starts)
    return Timeline(
        rank=rank,
        first_step=tuple(number[starts].tolist()),
        phase_ns={
            name: tuple(np.rint(np.add.reduceat(phases[name], starts) / weight).astype(np.int64).tolist())
            for name in PHASES
        },
        excluded_ratio=tuple((np.add.reduceat(np.where(base, 0, steps.weight), starts) / weight).tolist()),
    )


def _device_type(model_device: str | None, anchor: OptimizerFacts | None, accelerator: str | None) -> str:
    """Where the model is: as it reports, else as its optimizer reports, else on the accelerator that is there."""
    optimizer_device = anchor.device if anchor is not None else None
    return (model_device or optimizer_device or accelerator or "cpu").partition(":")[0]


def _health(
    steps: Steps, steady: Steady, anchor: OptimizerFacts | None, rank: RankAnalysis, facts: Sequence[Fact]
) -> tuple[Health, ...]:
    found = [Health(level="warning", message=message) for message in steady.messages]
    if steps.broken_count:
        found.append(
            Health(
                level="warning", message=f"{_were(steps.broken_count)} left out because some of their rows were lost"
            )
        )
    if steady.deep_count:
        found.append(
            Health(
                level="info",
                message=f"{_were(steady.deep_count)} left out: a profiler was running, or hotloop recorded operators",
            )
        )
    if steps.anchor_index is None:
        found.append(Health(level="info", message="no optimizer was observed: every backward counts as a step"))
    elif len(steps.optimizer_steps) > 1 and anchor is not None and steps.anchor_count == 1:
        place = f" ({os.path.basename(anchor.where.file)}:{anchor.where.line})" if anchor.where else ""
        message = (
            f"{len(steps.optimizer_steps)} optimizers are used: a training step ends with optimizer "
            f"{anchor.index + 1}, {anchor.name}{place}, which steps most regularly"
        )
        found.append(Health(level="info", message=message))
    if rank.device_wait_ratio >= TOLD_WAITS_RATIO:
        waits_ms = rank.device_wait_ratio * rank.step_mean_ns * 1e-6
        message = (
            f"the host waits {waits_ms:.3g} ms per step for the device between its phases: that time is counted in "
            "the phases that the device computes in the meantime"
        )
        found.append(Health(level="info", message=message))
    if steps.unequal_rows_count:
        found.append(Health(level="warning", message="the times of some rows do not add up to their windows"))
    tail, unrest = _describe_tail(steps, rank), _describe_unrest(rank)
    if tail is not None:
        found.append(Health(level="warning", message=tail))
    if unrest is not None:
        found.append(Health(level="info", message=unrest))
    return (*found, *read_health(of_kind(facts, "health")))


def _were(count: int) -> str:
    return f"{count:,} step was" if count == 1 else f"{count:,} steps were"


def _describe_tail(steps: Steps, rank: RankAnalysis) -> str | None:
    """A line if most of a recording on an accelerator comes after the last step that Python showed.

    Replaying a CUDA graph calls neither backward nor an optimizer, so such steps close no rows.
    """
    tail_ns, unseen_ns = steps.tail_ns or 0, sum((steps.tail or {}).get(name, 0) for name in UNSEEN_FIELDS)
    all_ns = int(steps.step_ns.sum()) + tail_ns
    if rank.device_type == "cpu" or tail_ns < LONG_TAIL_RATIO * all_ns or unseen_ns < LONG_TAIL_RATIO * tail_ns:
        return None
    return (
        f"the figures cover the first {(all_ns - tail_ns) * 1e-9:.3g} s of {all_ns * 1e-9:.3g} s recorded; after "
        "that, neither a backward nor an optimizer step was observed (steps that replay a CUDA graph cannot be "
        "observed)"
    )


def _describe_unrest(rank: RankAnalysis) -> str | None:
    """A line if a single process on the CPU was kept from its cores; None also if that is unknown."""
    threads, cores = rank.torch_threads, rank.cores
    if rank.device_type != "cpu" or rank.rank is None or rank.world_size > 1:
        return None
    if any(loader.num_workers for loader in rank.loaders) or (threads and cores and threads > cores):
        return None  # it may compete with its own workers or threads
    if (rank.run_delay_ratio or 0.0) < TOLD_DELAY_RATIO:
        return None
    return (
        f"the training thread was ready but had no core for {rank.run_delay_ratio:.0%} of the steady steps; other "
        "programs may be using these cores; shares are means"
    )
