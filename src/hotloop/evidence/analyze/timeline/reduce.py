"""Trace -> RankTimeline: everything that one rank's trace shows without the others, in one pass, small enough to send.

Together with the rest that is sent about a file, it is a ReducedRank; those of all ranks make the TraceAnalysis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.core.graph import RankCollectives
from hotloop.core.redact import redact_text
from hotloop.core.report import Health
from hotloop.core.timeline import (
    Anatomy,
    DevicePartition,
    IdleCauses,
    RankTimeline,
    StepIdle,
    StepsDevice,
    StepWindow,
)
from hotloop.core.trace import Category, Trace, TraceNote
from hotloop.core.trace_analysis import TraceAnalysis, TraceRank, WhatIf
from hotloop.core.trace_results import ReducedTraces

from .anatomy import (
    HostPhases,
    build_breakdown,
    find_host_phases,
    find_work_phases,
    list_ranges,
    split_steps,
    sum_by_phase,
)
from .classes import (
    Classes,
    DeviceCover,
    classify_work,
    cover_devices,
    describe_device,
    list_comm_groups,
    partition_windows,
)
from .collective_report import compare_ranks, describe_hosts
from .collectives import collect_collectives
from .critical_path import find_critical_path
from .idle import explain_idle
from .intervals import Int64s, cover_windows
from .links import Links, link_device_work
from .memory import describe_memory
from .steps import DeviceSteps, StepWindows, assign_device_work, find_steps
from .tables import measure_launches, tabulate_kernels, tabulate_modules, tabulate_ops
from .utilization import find_pageable_copies, measure_ratios, measure_utilization
from .what_if import answer_asked, can_replay, forecast_for_rules, open_typical_window

NAME_LENGTH = 400
"""Kernel names of templates can have tens of thousands of letters; a timeline keeps this many."""


NEARLY_ALL = 0.98
"""Complete steps that fill this much of a device's window count as the trace: the rest changes no share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceOptions:
    """The parts of a trace that are kept. ``top`` counts rows of every table; cut rows are counted if that is
    stated."""

    top: int = 200
    blame_top: int = 30
    op_sort: str = "device_time"
    what_if: tuple[str, ...] = ()
    """Changes to re-time, as a user writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groundwork:
    """The start of nearly every analysis of a trace."""

    links: Links
    classes: Classes
    steps: StepWindows


def lay_groundwork(trace: Trace) -> Groundwork:
    """Launches joined with device work, its classes, and the steps."""
    links = link_device_work(trace)
    return Groundwork(links=links, classes=classify_work(trace, links), steps=find_steps(trace, links))


def reduce_trace(trace: Trace, options: ReduceOptions | None = None, ground: Groundwork | None = None) -> RankTimeline:
    """The timeline of one rank. Raises UsageError for an unknown sort."""
    chosen = options or ReduceOptions()
    ground = ground or lay_groundwork(trace)
    links, classes, steps = ground.links, ground.classes, ground.steps
    covers = cover_devices(trace, links, classes)
    cover = covers[0] if covers else None
    phases = find_host_phases(trace, links, steps)
    step_phases = split_steps(phases, steps)
    work_phase = find_work_phases(trace, links, classes, phases)
    device_ns = sum_by_phase(links, cover.work if cover else np.empty(0, dtype=np.int64), work_phase)
    seen = assign_device_work(trace, links, cover.work, steps) if cover else None
    idle: IdleCauses | None = None
    step_idle: tuple[StepIdle | None, ...] = ()
    if cover is not None and seen is not None:
        idle, step_idle = explain_idle(trace, links, classes, cover, seen, phases.main_thread, chosen.blame_top)
    in_steps: StepsDevice | None = None
    if cover is not None and seen is not None and steps.source != "whole trace":
        in_steps = _measure_steps(trace, ground, cover, seen, phases.main_thread, chosen.blame_top)
    launch = measure_launches(trace, links, cover) if cover else None
    kernels, left_count = tabulate_kernels(trace, links, classes, top=chosen.top)
    op_sort = chosen.op_sort if cover or chosen.op_sort != "device_time" else "host_self"
    ops = tabulate_ops(trace, links, top=chosen.top, sort=op_sort)
    return RankTimeline(
        devices=tuple(describe_device(trace, links, c) for c in covers),
        comm_groups=tuple(replace(g, name=_shorten(g.name)) for g in list_comm_groups(trace, links, classes)),
        step_source=steps.source,
        steps=describe_steps(steps, step_phases, cover, seen, step_idle),
        anatomy=Anatomy(
            breakdown=build_breakdown(step_phases, steps.is_complete) if len(phases.phase) else None,
            device_ns=device_ns,
            phases_seen=phases.seen,
            ranges=list_ranges(trace, links, chosen.top),
        ),
        idle=idle,
        in_steps=in_steps,
        launch=launch,
        kernels=tuple(replace(k, name=_shorten(k.name)) for k in kernels),
        kernels_left_out_count=left_count,
        ops=tuple(replace(o, shapes=_shorten_text(o.shapes), dtypes=_shorten_text(o.dtypes)) for o in ops.rows),
        ops_left_out_count=ops.left_out_count,
        modules=tabulate_modules(trace, links, top=chosen.top),
        flops=ops.flops,
        ratios=measure_ratios(trace, links, cover, steps),
        utilization=measure_utilization(trace, links, steps, cover, seen, ops.calls),
        notes=_write_notes(trace, links, covers, steps, phases, seen),
    )


def _measure_steps(
    trace: Trace, ground: Groundwork, cover: DeviceCover, seen: DeviceSteps, main_thread: int | None, top: int
) -> StepsDevice | None:
    """The device's work in the windows of the complete steps; None if that is nearly all of it, or nothing."""
    links, classes = ground.links, ground.classes
    chosen = seen.has_window & ground.steps.is_complete
    start, end = seen.start_ns[chosen], seen.end_ns[chosen]
    whole_ns = int(links.end_ns[cover.work].max() - links.start_ns[cover.work].min())
    inside_ns = int((end - start).sum())
    if inside_ns == 0 or inside_ns >= NEARLY_ALL * whole_ns:
        return None
    parts = partition_windows(cover, start, end)
    idle, _ = explain_idle(trace, links, classes, cover, seen, main_thread, top, chosen)
    pageable = find_pageable_copies(trace, links, cover)
    is_kernel = trace.category[links.device_rows[cover.work]] == Category.KERNEL
    return StepsDevice(
        partition=DevicePartition(
            **{field.name: sum(getattr(part, field.name) for part in parts) for field in fields(DevicePartition)}
        ),
        idle=idle,
        steps_count=int(np.count_nonzero(chosen)),
        kernels_count=int(np.count_nonzero(is_kernel & (seen.of_work >= 0) & chosen[seen.of_work])),
        pageable_copies_ns=None if pageable is None else int(cover_windows(pageable, start, end).sum()),
    )


def describe_steps(
    steps: StepWindows,
    step_phases: Int64s,
    cover: DeviceCover | None,
    seen: DeviceSteps | None,
    idle: Sequence[StepIdle | None] = (),
) -> tuple[StepWindow, ...]:
    """The steps on the host and, if there is a device, on the one of ``cover``."""
    partitions: dict[int, DevicePartition] = {}
    if cover is not None and seen is not None:
        at = np.flatnonzero(seen.has_window)
        found = partition_windows(cover, seen.start_ns[at], seen.end_ns[at])
        partitions = dict(zip(at.tolist(), found, strict=True))
    last = max(partitions, default=-1)
    windows = []
    for i in range(len(steps)):
        partition = partitions.get(i)
        has = partition is not None and seen is not None
        windows.append(
            StepWindow(
                index=steps.index[i],
                host_start_ns=int(steps.start_ns[i]),
                host_end_ns=int(steps.end_ns[i]),
                is_complete=bool(steps.is_complete[i]),
                device_start_ns=int(seen.start_ns[i]) if has and seen is not None else None,
                device_end_ns=int(seen.end_ns[i]) if has and seen is not None else None,
                is_tail_inclusive=i == last,
                partition=partition,
                gpu_events=int(seen.gpu_events[i]) if seen is not None else 0,
                unlinked_events=int(seen.unlinked_events[i]) if seen is not None else 0,
                phases_ns=tuple(step_phases[i].tolist()),
                idle=idle[i] if has and idle else None,
            )
        )
    return tuple(windows)


def _write_notes(
    trace: Trace,
    links: Links,
    covers: tuple[DeviceCover, ...],
    steps: StepWindows,
    phases: HostPhases,
    seen: DeviceSteps | None,
) -> tuple[TraceNote, ...]:
    notes = []

    def note(level: str, code: str, message: str, count: int | None = None) -> None:
        notes.append(TraceNote(level=level, code=code, message=message, count=count))

    if steps.source == "whole trace":
        note(
            "info",
            "no-steps",
            "no steps are marked (ProfilerStep, optimizer or loader), so the entire trace is one window",
        )
    elif steps.source != "ProfilerStep":
        note("info", "no-steps", f"the steps were identified by {steps.source}, because the trace has no ProfilerStep")
    if not covers:
        note("info", "no-device-events", "the trace contains no device work, so there are no device figures")
    unlinked = int(np.count_nonzero(links.launch_row < 0))
    if unlinked:
        note(
            "warning" if unlinked * 20 > links.work_count else "info",
            "unlinked-kernels",
            f"{unlinked} of {links.work_count} device events have no launching call in the trace: they count in "
            "all totals but not in launch delays, and the cause of the idle time before them is unknown",
            unlinked,
        )
    if seen is not None:
        stray = int(np.count_nonzero(seen.of_work < 0))
        if stray:
            note("info", "outside-steps", f"{stray} device events were launched outside any step", stray)
    if len(covers) > 1:
        note(
            "info",
            "several-devices",
            f"{len(covers)} devices: steps and causes are those of device {covers[0].device}",
        )
    if links.work_count:
        late = np.flatnonzero(links.launch_row >= 0)
        before = int(np.count_nonzero(links.start_ns[late] < trace.start_ns[links.launch_row[late]]))
        if before:
            note(
                "warning",
                "before-launch",
                f"{before} device events begin before the call that launched them: host and device clocks differ, "
                "and launch delays and idle causes are wrong by that difference",
                before,
            )
    if phases.main_thread is None and len(trace.start_ns):
        note("info", "no-host", "the trace contains no host ranges, so there are no phases")
    if links.work_count and not np.any(trace.category == Category.PYTHON):
        note("info", "no-stacks", "no Python stacks were recorded: idle time is attributed to operators, not to lines")
    return tuple(notes)


def _shorten(text: str) -> str:
    return text if len(text) <= NAME_LENGTH else text[: NAME_LENGTH - 3] + "..."


def _shorten_text(text: str | None) -> str | None:
    return None if text is None else _shorten(text)


# ---- the results for a file, and all ranks together


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedRank:
    """What a worker returns about one file."""

    rank: TraceRank
    collectives: RankCollectives
    what_if: tuple[WhatIf, ...]
    notes: tuple[TraceNote, ...]


def describe_rank(
    trace: Trace, options: ReduceOptions, list_asked: Callable[[TraceRank], frozenset[str]]
) -> ReducedRank:
    """One file alone; everything that needs the other ranks comes later.

    ``list_asked`` names the forecasts that a rank needs, for the rules that find something in it.
    """
    ground = lay_groundwork(trace)
    parts = (trace, ground.links, ground.classes, ground.steps)
    rank = TraceRank(facts=trace.facts, timeline=reduce_trace(trace, options, ground))
    asked, window, notes = list_asked(rank), None, []
    if asked and can_replay(ground.links, ground.steps):
        try:
            window = open_typical_window(*parts)
        except UsageError as error:
            notes.append(TraceNote(level="info", code="not-replayed", message=str(error)))
    if window is not None:
        forecasts, forecast_notes = forecast_for_rules(*parts, asked, window)
        rank, notes = replace(rank, forecasts=forecasts), [*notes, *forecast_notes]
    if rank.timeline.step_source != "whole trace":
        with suppress(UsageError):  # a step that is too large has no path
            rank = replace(rank, path=find_critical_path(*parts, window=window))
    if trace.memory is not None:
        phases = find_host_phases(trace, ground.links, ground.steps)
        rank = replace(rank, memory=describe_memory(trace, ground.links, ground.steps, phases))
    answers, refusals = answer_asked(*parts, options.what_if) if options.what_if else ((), ())
    return ReducedRank(
        rank=rank,
        collectives=collect_collectives(*parts),
        what_if=answers,
        notes=(*notes, *refusals),
    )


def join_ranks(reduced: ReducedTraces[ReducedRank]) -> tuple[TraceAnalysis, tuple[TraceNote, ...]]:
    """All ranks together, and the notes about their files."""
    ranks = tuple(replace(one.result.rank, facts=one.facts) for one in reduced.traces)
    answers = tuple(replace(answer, rank=one.facts.rank) for one in reduced.traces for answer in one.result.what_if)
    # Both ends may count the same thing; the notes of the analyses name its consequence.
    several = [(*one.notes, *one.result.rank.timeline.notes, *one.result.notes) for one in reduced.traces]
    merged = [*reduced.notes, *merge_notes(several)]
    notes = tuple(sorted(merged, key=lambda note: _LEVELS.index(note.level)))
    collectives = [replace(one.result.collectives, rank=one.facts.rank) for one in reduced.traces]
    together = compare_ranks(collectives)
    if together is None:
        return TraceAnalysis(ranks=ranks, what_if=answers), notes
    analysis = TraceAnalysis(
        ranks=ranks,
        waits=together.waits,
        matched_count=together.matched_count,
        transfer_ns=together.transfer_ns,
        span_ns=together.span_ns,
        hosts=describe_hosts(together.clocks),
        what_if=answers,
    )
    return analysis, (*notes, *together.notes)


def merge_notes(several: Sequence[Sequence[TraceNote]]) -> list[TraceNote]:
    """The notes of files; a note that several files share appears once, with their number. Of one code, the last."""
    groups: dict[tuple[str, str], list[str]] = {}
    for notes in several:
        for note in {note.code: note for note in notes}.values():
            groups.setdefault((note.level, note.code), []).append(note.message)
    return [
        TraceNote(
            level=level,
            code=code,
            message=f"in {len(messages)} of {len(several)} files: {messages[0]}" if len(several) > 1 else messages[0],
        )
        for (level, code), messages in groups.items()
    ]


def describe_notes(notes: Iterable[TraceNote]) -> tuple[Health, ...]:
    """Notes as the report holds them."""
    return tuple(Health(level=note.level, message=redact_text(note.message)) for note in notes)


_LEVELS = ("error", "warning", "info")
