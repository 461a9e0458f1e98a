"""A recorded run, a report or a baseline file -> the launches that a gate judges; and the check of launches."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from hotloop import __version__
from hotloop.core.check import Check, Launch, Measure
from hotloop.core.decode import decode, to_plain
from hotloop.core.errors import RecordingError, UsageError
from hotloop.core.findings import Value, Where
from hotloop.core.input_file import read_bounded
from hotloop.core.phases import PHASES
from hotloop.core.redact import redact_command, redact_text
from hotloop.core.utilization import TARGETS, Utilization

from .changes import SideSteps, estimate_side_error
from .check import RATES, CheckLimits, judge, pick_same_machine
from .facts import Recording
from .measurement import join_training
from .summary import summarize_breakdown, summarize_lines, summarize_memory, summarize_steps, units_noise_ratio
from .trainings import Training, analyze_run, count_units, find_lead, find_unit_drift

MACHINE_KEYS = ("device_name", "accelerator", "cores", "memory_total_bytes", "torch", "python")


class Run(Protocol):
    """What the reader of a run folder offers."""

    @property
    def manifest(self) -> Mapping[str, Any] | None: ...

    @property
    def outcome(self) -> Mapping[str, Any] | None: ...

    @property
    def outcome_lost(self) -> bool: ...

    @property
    def processes(self) -> Sequence[Recording]: ...

    @property
    def health(self) -> Sequence[str]: ...


def describe_launch(
    run: Run, folder: Path, measure_use: Callable[[Any, Training, Path], Utilization], targets: Mapping[str, float]
) -> tuple[Launch, tuple[str, ...]]:
    """The largest training of a run, and its command; the launch is named after its folder and its start time.
    ``measure_use`` returns what it used of the hardware, ``targets`` what it should have used.

    Raises RecordingError if no training was seen."""
    name = redact_text(folder.name)
    started_s = (run.manifest or {}).get("started_wall_s")
    if isinstance(started_s, int | float) and 0 < started_s < 1e11:
        # CI runs often share one name: the time distinguishes a launch from a copy of another.
        name += f" ({datetime.fromtimestamp(started_s, UTC).isoformat(timespec='milliseconds')[:-6]}Z)"
    trainings = analyze_run(run.processes)
    if not trainings:
        raise RecordingError(
            f"{folder} contains no step: no process completed a backward or an optimizer step, so there is nothing "
            "to check; see `hotloop report`"
        )
    training = trainings[0]
    steps, breakdown, memory = summarize_steps(training), summarize_breakdown(training), summarize_memory(training)
    joined = join_training(training)
    measures: dict[str, Measure] = {"step_ns": _measure(joined, range(len(PHASES)), float(steps.mean_ns))}
    for at, phase in enumerate(PHASES):
        measures[f"{phase}_ns"] = _measure(joined, (at,), float(breakdown.mean_ns(phase)))
        measures[f"{phase}_share_ratio"] = Measure(value=breakdown.share(phase))
    units = count_units(training.processes, training.analysis.unit) if training.analysis.unit != "step" else None
    numbers: dict[str, float | None] = {
        "step_p95_ns": steps.p95_ns,
        "time_to_first_step_ns": steps.time_to_first_step_ns,
        "memory_peak_bytes": memory.peak_bytes,
    } | {rate: getattr(steps, rate) for rate in RATES}
    for key, value in numbers.items():
        if value is not None and value > 0:
            noise_ratio = units_noise_ratio(training.processes, key.partition("s_per_")[0])
            measures[key] = measure_rate(key, float(value), measures["step_ns"], noise_ratio)
    used = measure_use(run, training, folder)
    for target, ratio in TARGETS.items():
        reached = used.reached(target)
        if reached is not None:
            measures[ratio] = Measure(value=reached)
    places: dict[str, Where] = {}
    for line in summarize_lines(training):
        places.setdefault(line.phase, Where(file=line.file, line=line.line, function=line.function))
    warnings = [f"{name}: {message}" for message in run.health]
    if len(trainings) > 1:
        warnings.append(f"{name} contains {len(trainings)} training jobs; only the largest one is checked")
    if run.outcome is None:
        warnings.append(f"{name} is still training or was killed; its later steps are missing")
    elif run.outcome.get("exit_code"):
        warnings.append(f"{name}: the command ended with exit code {run.outcome['exit_code']}")
    process = training.lead
    recorded = find_lead(run.processes, training)
    machine: dict[str, Value] = {key: None if recorded is None else recorded.process.get(key) for key in MACHINE_KEYS}
    machine |= {"device": process.rank.device_type, "world_size": process.rank.world_size}
    launch = Launch(
        name=name,
        measures=measures,
        steps_count=joined.steps_count,
        unit=training.analysis.unit,
        units_per_step=units,
        unit_drifts=find_unit_drift(training.processes, training.analysis.unit) is not None,
        machine=machine,
        places=places,
        warnings=tuple(redact_text(warning) for warning in warnings),
        targets=targets,
    )
    return launch, redact_command((run.manifest or {}).get("command", process.argv))


def _measure(joined: SideSteps, parts: Sequence[int], value: float) -> Measure:
    error = estimate_side_error(joined, parts)
    if error is None:
        return Measure(value=value)
    return Measure(value=value, error=math.sqrt(error.variance), freedom=error.freedom)


def measure_rate(key: str, value: float, step: Measure, noise_ratio: float | None) -> Measure:
    """The error of a rate, from that of the step and that of its units if not all were read, in proportion."""
    if key not in RATES or step.error is None or step.value <= 0:
        return Measure(value=value)
    error_ratio = math.hypot(step.error / step.value, noise_ratio or 0.0)
    return Measure(value=value, error=value * error_ratio, freedom=step.freedom)


BASELINE_SCHEMA = "hotloop.baseline/1"
MOST_BYTES = 64 << 20
MOST_LAUNCHES = 1000
KEPT = ("name", "steps_count", "unit", "units_per_step", "unit_drifts", "machine", "measures")
"""What a baseline file contains about a launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Launches to compare with. ``history`` lists the changes that a baseline file records, oldest first."""

    name: str
    launches: tuple[Launch, ...]
    command: tuple[str, ...] = ()
    history: tuple[Mapping[str, Any], ...] = ()
    is_file: bool = False


def check_launches(
    runs: Sequence[Baseline], baselines: Sequence[Baseline], limits: CheckLimits
) -> tuple[Check, tuple[Launch, ...]]:
    """Judge runs against baselines. Also returns the launches of the runs, from which a baseline file may be written.

    Raises UsageError if a run is a baseline file.
    """
    for side in runs:
        if side.is_file:
            raise UsageError(
                f"{side.name} is a baseline file; give it with --baseline, and give the run to check as RUN"
            )
    ours = tuple(launch for side in runs for launch in side.launches)
    theirs = [launch for side in baselines for launch in side.launches]
    warnings = []
    shared = {launch.name for launch in ours} & {launch.name for launch in theirs}
    if shared:
        warnings.append(f"{', '.join(sorted(shared))} is on both sides and would be compared with itself")
    if len({side.command for side in (*runs, *baselines) if side.command}) > 1:
        warnings.append("the sides ran different commands")
    name = redact_text(", ".join(side.name for side in baselines)) if baselines else None
    found = judge(ours, theirs, limits, baseline_name=name, version=__version__)
    return replace(found, command=runs[0].command, warnings=(*found.warnings, *warnings)), ours


def read_baseline(name: str, path: Path) -> Baseline:
    """A baseline file. Raises RecordingError."""
    content = _load_json(path)
    schema = content.get("schema") if isinstance(content, dict) else None
    try:
        if schema == BASELINE_SCHEMA:
            return _parse_baseline(name, content)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RecordingError(
            f"{name} has schema {schema} but invalid content: {type(error).__name__}: {error}"
        ) from None
    raise RecordingError(
        f"{name}: schema is {schema!r}; a baseline is a run folder or a file that --update-baseline wrote"
        f" ({BASELINE_SCHEMA})"
    )


def _load_json(path: Path) -> Any:
    try:
        return json.loads(read_bounded(path, MOST_BYTES, "baseline", RecordingError))
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"{path} is not JSON: {error}") from None


# ---- the baseline file


def _drop_idle_rates(measures: Mapping[str, Measure]) -> dict[str, Measure]:
    """Without rates of 0, which give no time per unit."""
    return {name: one for name, one in measures.items() if name not in RATES or one.value != 0}


def _parse_baseline(name: str, content: Mapping[str, Any]) -> Baseline:
    found = decode(tuple[Launch, ...], content["launches"], place=f"{name}: launches")
    launches = tuple(replace(one, measures=_drop_idle_rates(one.measures)) for one in found)
    if not launches:
        raise RecordingError(f"{name} contains no launch; write it again: hotloop check RUN --baseline {name}")
    for launch in launches:
        missing = {"step_ns", *(f"{phase}_ns" for phase in PHASES)} - set(launch.measures)
        if missing or any(min(one.value, one.error or 0, one.freedom or 0) < 0 for one in launch.measures.values()):
            raise ValueError(f"{launch.name} lacks a time or has a negative one")
    return Baseline(
        name=name,
        launches=launches,
        command=decode(tuple[str, ...], content["command"], place=f"{name}: command"),
        history=decode(tuple[dict[str, Any], ...], content["history"], place=f"{name}: history"),
        is_file=True,
    )


def write_baseline(
    path: Path,
    launches: Sequence[Launch],
    command: Sequence[str],
    *,
    keep: bool,
    now: datetime | None = None,
) -> tuple[str, Mapping[str, Any]]:
    """The text of the baseline file at ``path`` with these launches, and the record of what changed.

    ``keep`` adds them to the existing launches; otherwise they replace them. ``path`` may only be a baseline file or
    not exist: raises UsageError otherwise.
    """
    before: Baseline | None = None
    if path.is_dir():
        raise UsageError(f"{path} is a folder; --update-baseline needs a file name, such as baseline.json")
    if path.exists():
        before = read_baseline(str(path), path)
    present = before.launches if before is not None and keep else ()
    added = [launch for launch in launches if launch.name not in {one.name for one in present}]
    if len(added) < len(launches):
        twice = ", ".join(sorted({one.name for one in launches} - {one.name for one in added}))
        raise UsageError(f"{twice} is already in {path}; a launch can be added only once")
    after = [*present, *added][-MOST_LAUNCHES:]
    record: dict[str, Any] = {
        "date": (now or datetime.now(UTC)).isoformat(timespec="seconds"),
        "what": "added" if present else "replaced" if before is not None else "created",
        "launches": [launch.name for launch in added],
        "changes": _list_changes(before.launches if before is not None else (), after),
    }
    content = {
        "schema": BASELINE_SCHEMA,
        "tool": {"version": __version__},
        "command": list(command),
        "launches": [{key: to_plain(getattr(launch, key)) for key in KEPT} for launch in after],
        "history": [*(before.history if before is not None else ()), record],
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n", record


def find_stranger(path: Path, launches: Sequence[Launch]) -> str | None:
    """The name of a launch that ran on a machine other than that of all launches in the baseline file at ``path``."""
    if not path.exists():
        return None
    present = read_baseline(str(path), path).launches
    return next((one.name for one in launches if not pick_same_machine([one], present)), None)


def _list_changes(before: Sequence[Launch], after: Sequence[Launch]) -> list[dict[str, Any]]:
    """The means of both sides, if both know the measure."""
    found = []
    for name in after[0].measures:
        sides = [
            [launch.measures[name].value for launch in side if name in launch.measures] for side in (before, after)
        ]
        if not sides[0] or not sides[1]:
            continue
        first, second = (sum(values) / len(values) for values in sides)
        if first != second:
            ratio = (second - first) / first if first else None
            found.append({"measure": name, "before": first, "after": second, "change_ratio": ratio})
    return found
