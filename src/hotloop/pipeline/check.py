"""Runs and a baseline as the user names them -> launches -> their Check; and the baseline file and the limits file."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hotloop import __version__
from hotloop.analyze.changes import estimate_side_error
from hotloop.analyze.check import BUDGETS, RATES, Limits, judge, pick_same_machine
from hotloop.analyze.run_changes import count_units, join_training
from hotloop.analyze.summary import (
    summarize_breakdown,
    summarize_lines,
    summarize_memory,
    summarize_steps,
    units_noise_ratio,
)
from hotloop.analyze.trainings import analyze_run, find_unit_drift
from hotloop.core.check import Check, Launch, Measure
from hotloop.core.errors import RecordingError, UsageError
from hotloop.core.findings import Value, Where
from hotloop.core.phases import PHASES
from hotloop.core.redact import redact_command, redact_text
from hotloop.trace.recording import find_run, read_run

BASELINE_SCHEMA = "hotloop.baseline/1"
LIMITS_SCHEMA = "hotloop.limits/1"
MOST_BYTES = 64 << 20
MOST_LAUNCHES = 1000
MACHINE_KEYS = ("device_name", "accelerator", "cores", "memory_total_bytes", "torch", "python")


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Launches to compare with. ``history`` is what a baseline file keeps of its changes, oldest first."""

    name: str
    launches: tuple[Launch, ...]
    command: tuple[str, ...] = ()
    history: tuple[Mapping[str, Any], ...] = ()
    is_file: bool = False


def check_runs(
    runs: Sequence[str], baselines: Sequence[str], limits: Limits, *, root: Path | None = None
) -> tuple[Check, tuple[Launch, ...]]:
    """Judge runs (folders, names under .hotloop, 'last') against baselines (the same, report JSON, baseline files).

    Answers the launches of the runs too, which a baseline file may be written from. Raises UsageError and
    RecordingError with what cannot be read.
    """
    root = root or Path.cwd()
    read = [_read_side(name, root) for name in runs]
    for side in read:
        if side.is_file:
            raise UsageError(f"{side.name} is a baseline file: name it with --baseline; RUN is what is judged by it")
    ours = tuple(launch for side in read for launch in side.launches)
    sides = [_read_side(name, root) for name in baselines]
    theirs = [launch for side in sides for launch in side.launches]
    warnings = []
    shared = {launch.name for launch in ours} & {launch.name for launch in theirs}
    if shared:
        warnings.append(f"{', '.join(sorted(shared))} stands on both sides: it is compared with itself")
    commands = {side.command for side in (*read, *sides) if side.command}
    if len(commands) > 1:
        warnings.append("the sides ran different commands")
    name = redact_text(", ".join(baselines)) if baselines else None
    found = judge(ours, theirs, limits, baseline_name=name, version=__version__)
    return replace(found, command=read[0].command, warnings=(*found.warnings, *warnings)), ours


# ---- one side


def _read_side(name: str, root: Path) -> Baseline:
    path = root / name
    if path.is_file():
        return _read_json_side(name, path)
    folder = find_run(name, root)
    launch, command = _read_run(folder)
    return Baseline(name=name, launches=(launch,), command=command)


def _read_run(folder: Path) -> tuple[Launch, tuple[str, ...]]:
    """The largest training of a run; the launch is called by its folder and the time at which it began."""
    run = read_run(folder)
    name = redact_text(folder.name)
    started_s = (run.manifest or {}).get("started_wall_s")
    if isinstance(started_s, int | float) and 0 < started_s < 1e11:
        # Runs of CI often all have one name: the time tells a launch from a copy of another.
        name += f" ({datetime.fromtimestamp(started_s, timezone.utc).isoformat(timespec='milliseconds')[:-6]}Z)"
    trainings = analyze_run(run.processes)
    if not trainings:
        raise RecordingError(
            f"{folder} holds no step: no process completed a backward or an optimizer step, so there is nothing to"
            " check; `hotloop report` says what was seen"
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
            measures[key] = _rate_measure(key, float(value), measures["step_ns"], noise_ratio)
    places: dict[str, Where] = {}
    for line in summarize_lines(training):
        places.setdefault(line.phase, Where(file=line.file, line=line.line, function=line.function))
    warnings = [f"{name}: {message}" for message in run.health]
    if len(trainings) > 1:
        warnings.append(f"{name} holds {len(trainings)} trainings; the largest one is judged")
    if run.outcome is None:
        warnings.append(f"{name} has not ended, or was killed: its later steps are missing")
    elif run.outcome.get("exit_code"):
        warnings.append(f"{name}: the command ended with exit code {run.outcome['exit_code']}")
    process = training.lead
    recorded = next((p.process for p in run.processes if p.process.get("pid") == process.rank.pid), {})
    machine: dict[str, Value] = {key: recorded.get(key) for key in MACHINE_KEYS}
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
    )
    return launch, redact_command((run.manifest or {}).get("command", process.argv))


def _measure(joined: Any, parts: Sequence[int], value: float) -> Measure:
    error = estimate_side_error(joined, parts)
    if error is None:
        return Measure(value=value)
    return Measure(value=value, error=math.sqrt(error.variance), freedom=error.freedom)


def _rate_measure(key: str, value: float, step: Measure, noise_ratio: float | None) -> Measure:
    """The error of a rate is that of the step and that of its units, where not all were read, in proportion."""
    if key not in RATES or step.error is None or step.value <= 0:
        return Measure(value=value)
    error_ratio = math.hypot(step.error / step.value, noise_ratio or 0.0)
    return Measure(value=value, error=value * error_ratio, freedom=step.freedom)


def _read_json_side(name: str, path: Path) -> Baseline:
    content = _load_json(path)
    schema = content.get("schema") if isinstance(content, dict) else None
    try:
        if schema == BASELINE_SCHEMA:
            return _parse_baseline(name, content)
        if schema == "hotloop.report/1":
            return _parse_report(name, content)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RecordingError(f"{name} says schema {schema} but is not: {type(error).__name__}: {error}") from None
    raise RecordingError(
        f"{name}: schema is {schema!r}; a baseline is a run folder, a report (hotloop.report/1) or a file that"
        f" --update-baseline wrote ({BASELINE_SCHEMA})"
    )


def _load_json(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise RecordingError(f"{path} is larger than {MOST_BYTES} bytes: it is not a baseline")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"{path} is not JSON: {error}") from None


def _parse_report(name: str, content: Mapping[str, Any]) -> Baseline:
    """A report keeps the spread of the steps and not their order: its errors take the steps as independent."""
    step, breakdown = content["step"], content["breakdown"]
    if step is None or breakdown is None:
        raise RecordingError(f"{name}: the report holds no step of a training, so there is nothing to compare with")
    count = int(step["steady_count"])
    root = math.sqrt(count) if count > 1 else None

    def spread(mean: float, std: float | None) -> Measure:
        known = std is not None and root is not None
        error = std / root if std is not None and root is not None else None
        return Measure(value=_magnitude(mean), error=error, freedom=count - 1 if known else None)

    cv = step["cv_ratio"]
    measures = {"step_ns": spread(step["mean_ns"], None if cv is None else _number(cv) * _number(step["mean_ns"]))}
    for phase in PHASES:
        measures[f"{phase}_ns"] = spread(breakdown[phase]["mean_ns"], _number(breakdown[phase]["std_ns"]))
        measures[f"{phase}_share_ratio"] = Measure(value=_number(breakdown[phase]["share_ratio"]))
    numbers = {
        "step_p95_ns": step["p95_ns"],
        "time_to_first_step_ns": step["time_to_first_step_ns"],
        "memory_peak_bytes": (content.get("memory") or {}).get("peak_bytes"),
    } | {rate: step.get(rate) for rate in RATES}
    for key, value in numbers.items():
        if value is not None and _number(value) > 0:
            noise_ratio = step.get("units_noise_ratio") if key == f"{step['unit']}s_per_s" else None
            measures[key] = _rate_measure(key, _number(value), measures["step_ns"], noise_ratio)
    environment = content.get("environment") or {}
    ranks = content.get("ranks") or [{}]
    machine: dict[str, Value] = {key: environment.get(key) for key in MACHINE_KEYS}
    machine["world_size"] = ranks[0].get("world_size")
    launch = Launch(
        name=redact_text(name),
        measures=measures,
        steps_count=count,
        unit=str(step["unit"]),
        units_per_step=None if step["units_per_step"] is None else _number(step["units_per_step"]),
        unit_drifts=bool(step.get("unit_drift")),
        machine=machine,
    )
    return Baseline(name=name, launches=(launch,), command=tuple(str(word) for word in content.get("command", ())))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _magnitude(value: Any) -> float:
    """A number of at least 0 with which arithmetic stays finite."""
    number = _number(value)
    if not 0 <= number < 1e30:
        raise ValueError(f"{value!r} is out of range")
    return number


# ---- the baseline file


def _parse_baseline(name: str, content: Mapping[str, Any]) -> Baseline:
    launches = tuple(_parse_launch(one) for one in content["launches"])
    if not launches:
        raise RecordingError(f"{name} holds no launch; write it again: hotloop check RUN --baseline {name}")
    history = content["history"]
    if not isinstance(history, list) or not all(isinstance(one, dict) for one in history):
        raise ValueError("history is not a list of records")
    return Baseline(
        name=name,
        launches=launches,
        command=tuple(str(word) for word in content["command"]),
        history=tuple(history),
        is_file=True,
    )


def _parse_launch(content: Mapping[str, Any]) -> Launch:
    measures = {
        str(key): Measure(
            value=_magnitude(one["value"]),
            error=None if one["error"] is None else _magnitude(one["error"]),
            freedom=None if one["freedom"] is None else _magnitude(one["freedom"]),
        )
        for key, one in content["measures"].items()
        if key not in RATES or _magnitude(one["value"]) > 0
    }
    for key in ("step_ns", *(f"{phase}_ns" for phase in PHASES)):
        if key not in measures:
            raise ValueError(f"a launch has no {key}")
    units = content["units_per_step"]
    return Launch(
        name=str(content["name"]),
        measures=measures,
        steps_count=int(content["steps_count"]),
        unit=str(content["unit"]),
        units_per_step=None if units is None else _number(units),
        unit_drifts=bool(content.get("unit_drifts")),
        machine=dict(content["machine"]),
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

    ``keep`` adds them to the launches that are there; without it they take their place. Only a baseline file (or
    nothing) may stand at ``path``: raises UsageError otherwise.
    """
    before: Baseline | None = None
    if path.is_dir():
        raise UsageError(f"{path} is a folder: --update-baseline writes a file; give a name such as baseline.json")
    if path.exists():
        before = _read_json_side(str(path), path)
        if not before.is_file:
            raise UsageError(f"{path} is a report, which --update-baseline does not overwrite; give another name")
    present = before.launches if before is not None and keep else ()
    added = [launch for launch in launches if launch.name not in {one.name for one in present}]
    if len(added) < len(launches):
        twice = ", ".join(sorted({one.name for one in launches} - {one.name for one in added}))
        raise UsageError(f"{twice} is in {path} already: a launch counts once")
    after = [*present, *added][-MOST_LAUNCHES:]
    record: dict[str, Any] = {
        "date": (now or datetime.now(timezone.utc)).isoformat(timespec="seconds"),
        "what": "added" if present else "replaced" if before is not None else "created",
        "launches": [launch.name for launch in added],
        "changes": _tell_changes(before.launches if before is not None else (), after),
    }
    content = {
        "schema": BASELINE_SCHEMA,
        "tool": {"version": __version__},
        "command": list(command),
        "launches": [_launch_to_json(launch) for launch in after],
        "history": [*(before.history if before is not None else ()), record],
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n", record


def find_stranger(path: Path, launches: Sequence[Launch]) -> str | None:
    """The name of a launch that ran on another machine than all launches in the baseline file at ``path``."""
    if not path.exists():
        return None
    present = _read_json_side(str(path), path)
    if not present.is_file:
        return None
    return next((one.name for one in launches if not pick_same_machine([one], present.launches)), None)


def _tell_changes(before: Sequence[Launch], after: Sequence[Launch]) -> list[dict[str, Any]]:
    """The means of both sides, where both know the measure."""
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


def _launch_to_json(launch: Launch) -> dict[str, Any]:
    return {
        "name": launch.name,
        "steps_count": launch.steps_count,
        "unit": launch.unit,
        "units_per_step": launch.units_per_step,
        "unit_drifts": launch.unit_drifts,
        "machine": dict(launch.machine),
        "measures": {
            key: {"value": one.value, "error": one.error, "freedom": one.freedom}
            for key, one in launch.measures.items()
        },
    }


# ---- the limits file


def load_limits(path: Path) -> Limits:
    """Read a limits file (TOML). Raises UsageError with the key and what it should be."""
    try:
        with path.open("rb") as file:
            text = file.read(1 << 20).decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot read the limits: {error.strerror}; give the path of a TOML file") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8; limits are a TOML file") from None
    return parse_limits(text, source=str(path))


def parse_limits(text: str, *, source: str = "limits") -> Limits:
    if sys.version_info >= (3, 11):
        import tomllib as toml
    else:
        import tomli as toml
    try:
        content = toml.loads(text)
    except (toml.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{source}: not TOML: {error}") from None
    if content.get("schema") != LIMITS_SCHEMA:
        raise UsageError(
            f'{source}: schema is {content.get("schema")!r}; the first line must be: schema = "{LIMITS_SCHEMA}"'
        )
    _refuse_unknown(source, "", content, ("schema", "tolerance", "noise", "budget"))
    tolerance = _table(source, content, "tolerance", ("step_ratio", "phase_ratio", "memory_ratio"))
    noise = _table(source, content, "noise", ("launch_ratio",))
    budgets = _table(source, content, "budget", tuple(BUDGETS))
    return Limits(**tolerance, launch_noise_ratio=noise.get("launch_ratio"), budgets=budgets)


def _table(source: str, content: Mapping[str, Any], table: str, known: Sequence[str]) -> dict[str, float]:
    found = content.get(table, {})
    if not isinstance(found, dict):
        raise UsageError(f"{source}: {table} is {found!r}; write a table: [{table}]")
    _refuse_unknown(source, f"{table}.", found, known)
    for key, value in found.items():
        try:
            number = _number(value)
        except (ValueError, OverflowError):
            number = -1.0
        if number < 0:
            raise UsageError(f"{source}: {table}.{key} is {value!r}; write a number of at least 0")
    return {key: float(value) for key, value in found.items()}


def _refuse_unknown(source: str, prefix: str, found: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in found:
        if key not in known:
            raise UsageError(f"{source}: unknown key {prefix}{key}; known: {', '.join(known)}")
