"""Two sides, each a trace, a folder of ranks or a recorded run -> their Comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hotloop import __version__
from hotloop.analyze.run_changes import change_per_unit, count_units, differ, join_training, sum_phases
from hotloop.analyze.summary import units_noise_ratio
from hotloop.analyze.timeline.collectives import collect_collectives
from hotloop.analyze.timeline.diff import device_steps, diff_ranks, host_steps
from hotloop.analyze.timeline.growth import RankWork, SideWork, collect_work, split_growth
from hotloop.analyze.timeline.reduce import ReduceOptions, lay_groundwork, reduce_trace
from hotloop.analyze.trainings import Training, analyze_run, find_unit_drift
from hotloop.core.comparison import Comparison, DiffSide, UnitChange
from hotloop.core.errors import RecordingError, UsageError
from hotloop.core.graph import RankCollectives
from hotloop.core.redact import redact_text
from hotloop.core.timeline import RankTimeline, TimelineNote
from hotloop.core.trace import Trace
from hotloop.trace.inputs import ReducedTraces, is_remote, map_traces
from hotloop.trace.recording import find_run, read_run
from hotloop.trace.source import Progress

TABLE_ROWS = 2_000
"""Kernels and operators of each rank that are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOptions:
    """How traces are read."""

    workers: int = 1
    cache_folder: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedForDiff:
    """What a worker sends back of one file."""

    timeline: RankTimeline
    collectives: RankCollectives
    work: RankWork | None


def reduce_for_diff(trace: Trace, options: ReduceOptions) -> ReducedForDiff:
    """One file alone."""
    ground = lay_groundwork(trace, options.definitions)
    parts = (trace, ground.links, ground.classes, ground.steps)
    return ReducedForDiff(
        timeline=reduce_trace(trace, options, ground),
        collectives=collect_collectives(*parts),
        work=collect_work(*parts),
    )


def compare(
    before: str,
    after: str,
    *,
    root: Path | None = None,
    options: DiffOptions | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two sides: files or folders of a profiler, or recorded runs (a folder, a name under .hotloop, 'last').

    Raises UsageError for a trace against a run, RecordingError (TraceError) when a side cannot be read.
    """
    root = root or Path.cwd()
    runs = [_find_side(name, root) for name in (before, after)]
    first, second = runs
    if first is not None and second is not None:
        return _compare_runs((before, after), (first, second))
    if first is None and second is None:
        return _compare_traces((before, after), root, options or DiffOptions(), progress)
    run, trace = (before, after) if first is not None else (after, before)
    raise UsageError(
        f"{run} is a recorded run and {trace} is a trace: they find steps in different ways, and a profiler slows the"
        " steps that it traces; compare two runs or two traces"
    )


def _find_side(name: str, root: Path) -> Path | None:
    """The folder of a run; None for what must be traces."""
    path = root / name
    if is_remote(name) or path.is_file():
        return None
    try:
        return find_run(name, root)
    except RecordingError as error:
        if path.is_dir():
            return None
        if name == "last":
            raise
        raise RecordingError(f"{name} is not a file, a folder or a run: {error}") from None


# ---- traces


def _compare_traces(names: tuple[str, str], root: Path, options: DiffOptions, progress: Progress | None) -> Comparison:
    reduced = [_read_traces(names[0], root, options, progress)]
    same = not any(is_remote(n) for n in names) and (root / names[0]).resolve() == (root / names[1]).resolve()
    reduced.append(reduced[0] if same else _read_traces(names[1], root, options, progress))
    timelines = [[one.result.timeline for one in side.traces] for side in reduced]
    found = diff_ranks(*timelines)
    if found.host is None and found.device is None:
        raise RecordingError(
            f"{names[0]} and {names[1]} cannot be compared: they do not both show steps on the host, and not both work"
            " of a device; `hotloop trace` says what each of them holds"
        )
    sides = [_describe_traces(name, side) for name, side in zip(names, reduced, strict=True)]
    warnings = [note.message for note in found.notes if note.level == "warning"]
    notes = [note.message for note in found.notes if note.level != "warning"]
    for which, side in zip(("before", "after"), reduced, strict=True):
        for level, message in _tell_notes(side):
            (warnings if level in ("error", "warning") else notes).append(f"{which}: {message}")
    if same:
        warnings.insert(0, "both sides are the same file or folder")
    warnings += _tell_devices(*sides)
    growth = None
    if max(len(side.traces) for side in reduced) > 1:
        one, two = (_side_work(side) for side in reduced)
        why = "not every rank shows a device, or a backward pass on the host"
        if one is not None and two is not None:
            growth, why = split_growth(one, two)
        if growth is None:
            notes.append(f"wait, transfer and overlap slow-down cannot be told apart: {why}")
    elif any(one.facts.world_size and one.facts.world_size > 1 for side in reduced for one in side.traces):
        notes.append("one rank of several: waits for the others cannot be told from transfers without their files")
    notes.append("traces do not say how many samples a step has: check that it is the same on both sides")
    if found.host is not None and min(s.steps_count for s in sides) > 1:
        notes.append(_INTERVAL_NOTE)
    return Comparison(
        tool_version=__version__,
        before=sides[0],
        after=sides[1],
        warnings=_redacted(warnings),
        step=found.host,
        per_unit=None,
        device=found.device,
        growth=growth,
        kernels=found.kernels,
        ops=found.ops,
        notes=_redacted(notes),
    )


def _read_traces(
    name: str, root: Path, options: DiffOptions, progress: Progress | None
) -> ReducedTraces[ReducedForDiff]:
    return map_traces(
        [name if is_remote(name) else root / name],
        partial(reduce_for_diff, options=ReduceOptions(top=TABLE_ROWS)),
        options.workers,
        progress=progress,
        cache_folder=options.cache_folder,
    )


def _side_work(side: ReducedTraces[ReducedForDiff]) -> SideWork | None:
    work = [one.result.work for one in side.traces]
    known = [w for w in work if w is not None]
    if len(known) < len(work):
        return None
    return SideWork(known, [replace(one.result.collectives, rank=one.facts.rank) for one in side.traces])


def _describe_traces(name: str, side: ReducedTraces[ReducedForDiff]) -> DiffSide:
    timelines = [one.result.timeline for one in side.traces]
    joined = host_steps(timelines) or device_steps(timelines)
    has_device = all(t.devices for t in timelines)
    return DiffSide(
        name=redact_text(name),
        kind="traces",
        ranks_count=len(timelines),
        world_size=max((one.facts.world_size or 0 for one in side.traces), default=0) or None,
        steps_count=0 if joined is None else joined.steps_count,
        step_source=", ".join(sorted({t.step_source for t in timelines})),
        device="device" if has_device else "cpu",
        samples_per_step=None,
        tokens_per_step=None,
    )


def _tell_notes(side: ReducedTraces[ReducedForDiff]) -> list[tuple[str, str]]:
    """What is wrong with the files themselves; what several have in common is said once."""
    found: dict[tuple[str, str], int] = {}
    for note in side.notes:
        if note.code != "guessed-ranks" or len(side.traces) > 1:
            found[(note.level, note.message)] = 1
    told: dict[tuple[str, str], list[str]] = {}
    for one in side.traces:
        notes: list[TimelineNote] = [
            TimelineNote(level=n.level, code=n.code, message=n.message) for n in one.notes if n.level != "info"
        ]
        notes += [n for n in one.result.timeline.notes if n.level != "info"]
        for n in {n.code: n for n in notes}.values():
            told.setdefault((n.level, n.code), []).append(n.message)
    messages = list(found)
    for (level, _), texts in told.items():
        several = f"in {len(texts)} of {len(side.traces)} files: " if len(side.traces) > 1 else ""
        messages.append((level, several + texts[0]))
    return messages


def _tell_devices(before: DiffSide, after: DiffSide) -> list[str]:
    if before.device == after.device or before.device is None or after.device is None:
        return []
    if before.kind == "traces":
        which = "before" if before.device == "cpu" else "after"
        return [f"{which} shows no device work: only the host can be compared"]
    return [f"before trains on {before.device}, after on {after.device}"]


# ---- runs


def _compare_runs(names: tuple[str, str], folders: tuple[Path, Path]) -> Comparison:
    trainings = [_read_training(folders[0])]
    same = folders[0].resolve() == folders[1].resolve()
    trainings.append(trainings[0] if same else _read_training(folders[1]))
    (first, first_notes), (second, second_notes) = trainings
    joined = (join_training(first), join_training(second))
    sides = tuple(
        _describe_run(name, training, steps.steps_count, steps.ranks_count)
        for name, training, steps in zip(names, (first, second), joined, strict=True)
    )
    before, after = sides
    warnings = ["both sides are the same run"] if same else []
    warnings += _tell_devices(before, after)
    per_unit: UnitChange | None = None
    for unit, one, two in (
        ("token", before.tokens_per_step, after.tokens_per_step),
        ("sample", before.samples_per_step, after.samples_per_step),
    ):
        if one is not None and two is not None and differ(one, two):
            warnings.append(
                f"a step has {one:,.6g} {unit}s before and {two:,.6g} after (all ranks together): compare the time"
                f" per {unit}"
            )
            processes = (first.processes, second.processes)
            drifts = any(find_unit_drift(side, unit) is not None for side in processes)
            if drifts:
                warnings.append(
                    f"the {unit}s of a step drift over the run: where the sides trained other steps, their time per"
                    f" {unit} differs by that, too, so it has no interval; train as many steps on both sides"
                )
            if per_unit is None:
                noise_ratios = [None if drifts else units_noise_ratio(side, unit) for side in processes]
                per_unit = change_per_unit(unit, joined, (one, two), noise_ratios)
    if before.ranks_count != after.ranks_count:
        warnings.append(
            f"ranks: {before.ranks_count} before and {after.ranks_count} after; every time is the mean over them"
        )
    if first.lead.rank.anchor != second.lead.rank.anchor:
        warnings.append(
            f"steps end with {first.lead.rank.anchor} before and with {second.lead.rank.anchor} after: they may not be"
            " the same steps"
        )
    for which, steps in zip(("before", "after"), joined, strict=True):
        if steps.alignment == "lead":
            warnings.append(f"{which}: the steps of the ranks do not belong together; only the first rank counts")
        if steps.steps_count == 1:
            warnings.append(f"{which}: only one step was recorded, and its start-up costs are part of it; no interval")
    notes = [f"before: {n}" for n in first_notes] + [f"after: {n}" for n in second_notes]
    if max(before.ranks_count, after.ranks_count) > 1:
        notes.append(
            "a recording does not tell waiting for other ranks from transferring: trace both sides with a profiler to"
            " split the growth of backward"
        )
    if "cpu" not in (before.device, after.device):
        notes.append("phases are time of the host: work of the device shows in the phase where the host waits for it")
    notes.append(_INTERVAL_NOTE)
    return Comparison(
        tool_version=__version__,
        before=before,
        after=after,
        warnings=_redacted(warnings),
        step=sum_phases(*joined),
        per_unit=per_unit,
        device=None,
        growth=None,
        kernels=(),
        ops=(),
        notes=_redacted(notes),
    )


_INTERVAL_NOTE = (
    "the intervals cover how steps vary within what was recorded, corrected for steps that resemble their neighbours;"
    " each side is one launch, and what differs from launch to launch (n = 1) is not in them"
)


def _read_training(folder: Path) -> tuple[Training, list[str]]:
    """The largest training of a run, and what has to be known about it."""
    run = read_run(folder)
    trainings = analyze_run(run.processes)
    if not trainings:
        raise RecordingError(
            f"{folder} holds no step: no process completed a backward or an optimizer step, so there is nothing to"
            " compare; `hotloop report` says what was seen"
        )
    notes = [*run.health, *(h.message for h in trainings[0].health)]
    if len(trainings) > 1:
        notes.append(f"the run holds {len(trainings)} trainings; the largest one is compared")
    if run.outcome is None:
        notes.append("the run has not ended, or was killed: its later steps are missing")
    return trainings[0], notes


def _describe_run(name: str, training: Training, steps_count: int, ranks_count: int) -> DiffSide:
    rank = training.lead.rank
    return DiffSide(
        name=redact_text(name),
        kind="run",
        ranks_count=ranks_count,
        world_size=rank.world_size,
        steps_count=steps_count,
        step_source=rank.anchor,
        device=rank.device_type,
        samples_per_step=count_units(training, "sample"),
        tokens_per_step=count_units(training, "token"),
    )


def _redacted(messages: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(redact_text(message) for message in messages))
