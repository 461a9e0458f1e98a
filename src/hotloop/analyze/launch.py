"""A recorded run -> the Launch that a gate judges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from hotloop.core.check import Launch, Measure
from hotloop.core.errors import RecordingError
from hotloop.core.findings import Value, Where
from hotloop.core.phases import PHASES
from hotloop.core.redact import redact_command, redact_text
from hotloop.core.utilization import TARGETS, Utilization

from .changes import SideSteps, estimate_side_error
from .check import RATES
from .process import Recording
from .run_changes import count_units, join_training
from .summary import summarize_breakdown, summarize_lines, summarize_memory, summarize_steps, units_noise_ratio
from .trainings import Training, analyze_run, find_lead, find_unit_drift

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
    """The largest training of a run, and its command; the launch is called by its folder and the time at which it
    began. ``measure_use`` tells what it used of the hardware, ``targets`` what it should have.

    Raises RecordingError where no training was seen."""
    name = redact_text(folder.name)
    started_s = (run.manifest or {}).get("started_wall_s")
    if isinstance(started_s, int | float) and 0 < started_s < 1e11:
        # Runs of CI often all have one name: the time tells a launch from a copy of another.
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
    units = count_units(training, training.analysis.unit) if training.analysis.unit != "step" else None
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
        warnings.append(f"{name} contains {len(trainings)} trainings; only the largest one is checked")
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
    """The error of a rate is that of the step and that of its units, where not all were read, in proportion."""
    if key not in RATES or step.error is None or step.value <= 0:
        return Measure(value=value)
    error_ratio = math.hypot(step.error / step.value, noise_ratio or 0.0)
    return Measure(value=value, error=value * error_ratio, freedom=step.freedom)
