"""The user's inputs on two sides (runs, traces, reports, baseline files) -> a Comparison or a Check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hotloop.core.check import Check, Launch
from hotloop.core.comparison import Comparison
from hotloop.core.environment import ENVIRONMENT_FILE, compare_environments, list_unknown
from hotloop.core.errors import UsageError
from hotloop.evidence.analyze.check import CheckLimits
from hotloop.evidence.analyze.compare_runs import compare_runs
from hotloop.evidence.analyze.launch import Baseline, check_launches, describe_launch, read_baseline
from hotloop.evidence.analyze.timeline.compare_traces import compare_traces, reduce_for_diff
from hotloop.evidence.trace.inputs import find_recorded, is_remote, map_traces
from hotloop.evidence.trace.recording import read_json, read_run
from hotloop.pipeline.recordings import locate_run
from hotloop.pipeline.runs import measure_recorded, read_targets
from hotloop.remote.fetch import holds_recording


def check_runs(runs: Sequence[str], baselines: Sequence[str], limits: CheckLimits) -> tuple[Check, tuple[Launch, ...]]:
    """Judge runs (folders, names under .hotloop, 'last') against baselines (the same, baseline files).

    Returns the launches of the runs too, which a baseline file may be written from. Raises UsageError and
    RecordingError with what cannot be read.
    """
    return check_launches([_read_side(name) for name in runs], [_read_side(name) for name in baselines], limits)


def _read_side(name: str) -> Baseline:
    if Path(name).is_file():
        return read_baseline(name, Path(name))
    folder = locate_run(name)
    run = read_run(folder)
    launch, command = describe_launch(run, folder, measure_recorded, read_targets(run))
    return Baseline(name=name, launches=(launch,), command=command)


def compare(before: str, after: str, *, workers: int = 1) -> Comparison:
    """Compare two sides: files or folders of a profiler, or recorded runs (a folder, a name under .hotloop, 'last', or
    where the nodes of a run uploaded it to).

    Raises UsageError for a trace against a run, RecordingError (TraceError) when a side cannot be read.
    """
    names = before, after
    first, second = (locate_run(name) if holds_recording(name) else find_recorded(name, Path.cwd()) for name in names)
    if first is not None and second is not None:
        run = read_run(first)
        other = run if first.resolve() == second.resolve() else read_run(second)
        return _add_environments(compare_runs(names, (first, second), (run, other), measure_recorded), first, second)
    if first is None and second is None:
        read = partial(map_traces, reduce=reduce_for_diff, workers=workers)
        same = not any(map(is_remote, names)) and Path(before).resolve() == Path(after).resolve()
        sides = [read([name if is_remote(name) else Path(name)]) for name in names[: 1 if same else 2]]
        return compare_traces(names, (sides[0], sides[-1]))
    recorded, trace = names if first is not None else reversed(names)
    raise UsageError(
        f"{recorded} is a recorded run and {trace} is a trace, which are not comparable: steps are found in different "
        "ways, and profiling slows down the steps; compare two runs or two traces"
    )


def _add_environments(comparison: Comparison, first: Path, second: Path) -> Comparison:
    notes = list(comparison.notes)
    before, after = (read_json(folder / ENVIRONMENT_FILE, notes) or {} for folder in (first, second))
    if unknown := list_unknown(before, after):
        notes.append(f"not compared, because a side did not record them: {', '.join(unknown)}")
    return replace(comparison, environment=compare_environments(before, after), notes=tuple(notes))
