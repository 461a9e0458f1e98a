"""Two sets of traces, reduced file by file -> their Comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hotloop import __version__
from hotloop.analyze.compare_runs import INTERVAL_NOTE, compare_devices, redact_once
from hotloop.core.comparison import Comparison, DiffSide
from hotloop.core.errors import RecordingError
from hotloop.core.graph import RankCollectives
from hotloop.core.redact import redact_text
from hotloop.core.timeline import RankTimeline
from hotloop.core.trace import Trace, TraceNote
from hotloop.core.trace_results import ReducedTraces
from hotloop.core.utilization import mean_utilization

from .collectives import collect_collectives
from .diff import device_steps, diff_ranks, host_steps
from .growth import RankWork, SideWork, collect_work, split_growth
from .reduce import ReduceOptions, lay_groundwork, reduce_trace

TABLE_ROWS = 2_000
"""Kernels and operators of each rank that are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedForDiff:
    """What a worker sends back of one file."""

    timeline: RankTimeline
    collectives: RankCollectives
    work: RankWork | None


def reduce_for_diff(trace: Trace) -> ReducedForDiff:
    """One file alone."""
    options = ReduceOptions(top=TABLE_ROWS)
    ground = lay_groundwork(trace, options.definitions)
    parts = (trace, ground.links, ground.classes, ground.steps)
    return ReducedForDiff(
        timeline=reduce_trace(trace, options, ground),
        collectives=collect_collectives(*parts),
        work=collect_work(*parts),
    )


Side = ReducedTraces[ReducedForDiff]


def compare_traces(names: tuple[str, str], reduced: tuple[Side, Side]) -> Comparison:
    """Traces as the user names them; a side that is given twice is compared with itself. Raises RecordingError where
    the sides show nothing in common."""
    same = reduced[0] is reduced[1]
    timelines = [[one.result.timeline for one in side.traces] for side in reduced]
    found = diff_ranks(*timelines)
    if found.host is None and found.device is None:
        raise RecordingError(
            f"{names[0]} and {names[1]} cannot be compared: they have neither host steps nor device work in "
            "common; see `hotloop trace` for what each contains"
        )
    sides = [_describe_traces(name, side) for name, side in zip(names, reduced, strict=True)]
    warnings = [note.message for note in found.notes if note.level == "warning"]
    notes = [note.message for note in found.notes if note.level != "warning"]
    for which, side in zip(("before", "after"), reduced, strict=True):
        for level, message in _collect_notes(side):
            (warnings if level in ("error", "warning") else notes).append(f"{which}: {message}")
    if same:
        warnings.insert(0, "both sides are the same file or folder")
    warnings += compare_devices(*sides)
    growth = None
    if max(len(side.traces) for side in reduced) > 1:
        one, two = (_side_work(side) for side in reduced)
        why = "not every rank shows a device, or a backward pass on the host"
        if one is not None and two is not None:
            growth, why = split_growth(one, two)
        if growth is None:
            notes.append(f"wait, transfer and overlap slow-down cannot be separated: {why}")
    elif any(one.facts.world_size and one.facts.world_size > 1 for side in reduced for one in side.traces):
        notes.append(
            "only one rank of several: without the other ranks' files, waiting cannot be separated from transfer"
        )
    notes.append("traces do not contain the number of samples per step; make sure that it is the same on both sides")
    if found.host is not None and min(s.steps_count for s in sides) > 1:
        notes.append(INTERVAL_NOTE)
    return Comparison(
        tool_version=__version__,
        before=sides[0],
        after=sides[1],
        warnings=redact_once(warnings),
        step=found.host,
        per_unit=None,
        device=found.device,
        growth=growth,
        kernels=found.kernels,
        ops=found.ops,
        notes=redact_once(notes),
    )


def _side_work(side: Side) -> SideWork | None:
    work = [one.result.work for one in side.traces]
    known = [w for w in work if w is not None]
    if len(known) < len(work):
        return None
    return SideWork(known, [replace(one.result.collectives, rank=one.facts.rank) for one in side.traces])


def _describe_traces(name: str, side: Side) -> DiffSide:
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
        utilization=mean_utilization([t.utilization for t in timelines]),
    )


def _collect_notes(side: Side) -> list[tuple[str, str]]:
    """What is wrong with the files themselves; what several have in common is said once."""
    found: dict[tuple[str, str], int] = {}
    for note in side.notes:
        if note.code != "guessed-ranks" or len(side.traces) > 1:
            found[(note.level, note.message)] = 1
    collected: dict[tuple[str, str], list[str]] = {}
    for one in side.traces:
        notes: list[TraceNote] = [
            TraceNote(level=n.level, code=n.code, message=n.message) for n in one.notes if n.level != "info"
        ]
        notes += [n for n in one.result.timeline.notes if n.level != "info"]
        for n in {n.code: n for n in notes}.values():
            collected.setdefault((n.level, n.code), []).append(n.message)
    messages = list(found)
    for (level, _), texts in collected.items():
        several = f"in {len(texts)} of {len(side.traces)} files: " if len(side.traces) > 1 else ""
        messages.append((level, several + texts[0]))
    return messages
