"""A run folder -> a Report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hotloop.change.apply import ACTS
from hotloop.change.tune.history import NAME as HISTORY
from hotloop.change.tune.history import read_history
from hotloop.change.tune.supervisor import CORES_FILE
from hotloop.core.analysis import Forecast
from hotloop.core.errors import HotloopError
from hotloop.core.report import Health, Report
from hotloop.core.settings import load_settings
from hotloop.core.utilization import TARGETS, Utilization
from hotloop.evidence.analyze.measurement import steady_span_s, step_times
from hotloop.evidence.analyze.memory import find_memory_failures, find_memory_near
from hotloop.evidence.analyze.summary import summarize_breakdown, summarize_steps
from hotloop.evidence.analyze.training_report import (
    add_devices,
    add_findings,
    describe_kept,
    describe_reading,
    find_outcome,
    restate_training,
    restate_unseen,
)
from hotloop.evidence.analyze.trainings import Training, analyze_run, find_lead
from hotloop.evidence.analyze.utilization import Sampled, measure_utilization
from hotloop.evidence.telemetry.devices import NAME as DEVICES
from hotloop.evidence.telemetry.devices import describe_devices, read_device_use
from hotloop.evidence.telemetry.environment import describe_environment
from hotloop.evidence.telemetry.host_load import describe_load, read_host_load
from hotloop.evidence.trace.recording import RunRecording, read_run
from hotloop.judge.diagnose import find_problems
from hotloop.judge.diagnose.completion import complete_findings
from hotloop.judge.diagnose.rules.low_utilization import list_waits
from hotloop.judge.diagnose.rules.memory_pressure import FULL_RATIO
from hotloop.judge.diagnose.rules.out_of_memory import describe_failures, out_of_memory
from hotloop.judge.diagnose.verdict import (
    describe_unseen_verdict,
    describe_verdict,
    divide_run,
    explain_step,
    first_serious,
    warn_of_unknown,
)
from hotloop.measure.bench.probe import measure_forecasts, recall_cpu_peaks, recall_forecasts, recall_probe_ns
from hotloop.pipeline.recordings import locate_run
from hotloop.remote.fetch import describe_fetch, is_store
from hotloop.remote.uploader import describe_upload
from hotloop.show.export.exporter import describe_exports

from .bounding import recall_bounds
from .stalls import describe_stalls

Forecasts = Mapping[str, Forecast]
Probe = Callable[[RunRecording, Training, Path], Forecasts]
"""Measures what techniques would save for a training of the run in a folder."""


def no_probe(run: RunRecording, training: Training, folder: Path) -> Forecasts:
    """Nothing is measured: opportunities stay at most low."""
    return {}


def probe_training(
    run: RunRecording, training: Training, folder: Path, *, emit: Callable[[str], None], on_begin: Callable[[], None]
) -> Forecasts:
    """Measured now, after the training, in a child of the interpreter that it ran in."""
    lead, step, count = find_lead(run.processes, training), step_times(training), training.lead.rank.steady_count
    measure = partial(measure_forecasts, emit=emit, on_begin=on_begin)
    return {} if lead is None else measure(lead.process, lead.facts, step, count, folder)


def recorded_probe(run: RunRecording, training: Training, folder: Path) -> Forecasts:
    """The measurements that were made when the run ended."""
    return recall_forecasts(run.probe, step_times(training))


def read_report(run: str | Path = "last", *, probe: Probe = no_probe) -> Report:
    """The report of a recorded run: a folder, a name under ``.hotloop/``, 'last', or where its nodes uploaded it to.

    Raises RecordingError when there is nothing to read.
    """
    folder = locate_run(str(run))
    report = recall_bounds(report_run(read_run(folder), folder=folder, probe=probe), folder)
    if report.next_command is None or not is_store(str(run)):
        return report
    # The folder of the cache is nobody's to name.
    return replace(report, next_command=report.next_command.replace(f"report {folder.name} ", f"report {run} "))


def report_run(run: RunRecording, *, folder: Path, probe: Probe = no_probe) -> Report:
    """Analyze, diagnose and prescribe; the largest training of the run on top, all of them in ``runs``."""
    sent = (*describe_fetch(folder), *describe_upload(folder))
    watched = (*describe_devices(folder), *describe_exports(folder), *describe_stalls(folder))
    trainings, health = analyze_run(run.processes), (*sent, *describe_reading(run), *watched)
    if not trainings:
        return _report_unseen(run, folder, health)
    # With several trainings nothing tells whose traces were kept.
    traced, notes = read_kept_traces(folder / "traces") if len(trainings) == 1 else (None, ())
    reports: list[Report] = []
    for training in trainings:
        load = read_host_load(folder / CORES_FILE, steady_span_s(training, run.processes, _started_on(run)))
        seen = (*health, *describe_load(load), *notes)
        # The command waits for one probe, however many trainings the run had: the largest one's.
        forecasts = {} if reports else probe(run, training, folder)
        reports.append(_report_training(run, training, folder, forecasts, traced, seen))
    return replace(reports[0], runs=tuple(reports) if len(reports) > 1 else ())


def _report_training(
    run: RunRecording,
    training: Training,
    folder: Path,
    forecasts: Forecasts,
    traced: Report | None,
    health: tuple[Health, ...],
) -> Report:
    ranks = tuple(replace(rank, forecasts=forecasts) for rank in training.analysis.ranks)
    analysis = replace(
        training.analysis,
        ranks=ranks,
        utilization=measure_use(run, training, folder=folder, traced=traced),
        targets=read_targets(run),
        waits={} if traced is None or traced.trace is None else list_waits(traced.trace),
    )
    if find_outcome(run, training).ended == "oom":
        analysis = replace(analysis, memory_failures=find_memory_failures(run.processes))
    else:
        analysis = replace(analysis, memory_near=find_memory_near(run.processes, FULL_RATIO))
    seen = restate_training(run, training, analysis)
    found, skipped = add_findings(*find_problems(analysis, off=load_settings().ignore), traced)
    breakdown = summarize_breakdown(training)
    findings, combined = complete_findings(found, ACTS, breakdown)
    explained = explain_step(analysis.lead, findings)
    return replace(
        seen,
        verdict=describe_verdict(findings, breakdown, summarize_steps(training), seen.lines),
        step=None
        if seen.step is None
        else replace(seen.step, explained=explained, run_parts=divide_run(analysis.lead)),
        device=None
        if traced is None or traced.device is None
        else replace(traced.device, utilization_ratio=analysis.utilization.utilization_ratio),
        ranks=add_devices(seen.ranks, traced),
        findings=findings,
        combined_saving=combined,
        forecast_history=read_history(folder.parent / HISTORY),
        skipped=skipped,
        health=(*health, *seen.health, *warn_of_unknown(explained, analysis.lead)),
        overhead=seen.overhead and replace(seen.overhead, probe_ns=recall_probe_ns(folder)),
        # The last line says more of what the first line named.
        next_command=f"hotloop rule {(first_serious(findings) or findings[0]).rule}"
        if findings
        else f"hotloop report {folder.name} --html report.html",
        run_folder=str(folder),
    )


def measure_recorded(run: RunRecording, training: Training, folder: Path) -> Utilization:
    """Like ``measure_use``, with the traces that the run kept."""
    return measure_use(run, training, folder=folder, traced=read_kept_traces(folder / "traces")[0])


def read_environment(folder: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """What the processes of a run that ended ran with, for environment.json. ``variables`` are what the command got."""
    return describe_environment([one.process for one in read_run(folder).processes], variables)


def _started_on(run: RunRecording) -> str | None:
    """The host of `hotloop run`, which sampled its cores and devices."""
    host = (run.manifest or {}).get("host")
    return host if isinstance(host, str) else None


def read_targets(run: RunRecording) -> dict[str, float]:
    """The user's targets, as ``hotloop run --target`` recorded them."""
    recorded = (run.manifest or {}).get("targets")
    known = recorded.items() if isinstance(recorded, dict) else ()
    return {name: float(value) for name, value in known if name in TARGETS and isinstance(value, (int, float))}


FEWEST_USE_SAMPLES = 5
"""NVML's samples trail what they measure by up to a second: fewer in the steady steps include the start as well."""


def measure_use(run: RunRecording, training: Training, *, folder: Path, traced: Report | None) -> Utilization:
    """The hardware utilization of the steady steps; ``traced`` is the report of the traces that the run kept."""
    span_s = steady_span_s(training, run.processes, _started_on(run))
    use, load = read_device_use(folder / DEVICES, span_s), read_host_load(folder / CORES_FILE, span_s)
    if use is not None and use.samples_count < FEWEST_USE_SAMPLES:
        use = None
    lead = find_lead(run.processes, training)
    sampled = Sampled(
        utilization_ratio=None if use is None else use.utilization_ratio,
        sm_active_ratio=None if use is None else use.sm_active_ratio,
        cpu_utilization_ratio=None if load is None else load.own_ratio,
        cpu_others_ratio=None if load is None else load.others_ratio,
        device_name=None if lead is None else lead.process.get("device_name"),
        cpu_peaks=recall_cpu_peaks(folder),
    )
    return measure_utilization(training.analysis, sampled, None if traced is None else traced.utilization)


def _report_unseen(run: RunRecording, folder: Path, health: tuple[Health, ...]) -> Report:
    seen = restate_unseen(run)
    is_oom = seen.outcome is not None and seen.outcome.ended == "oom"
    failures = find_memory_failures(run.processes) if is_oom else ()
    findings, _ = complete_findings([out_of_memory.sign(one) for one in describe_failures(failures)], ACTS)
    return replace(
        seen,
        verdict=describe_unseen_verdict(findings),
        findings=findings,
        forecast_history=read_history(folder.parent / HISTORY),
        health=(*seen.health, *health),
        run_folder=str(folder),
    )


def read_kept_traces(traces: Path) -> tuple[Report | None, tuple[Health, ...]]:
    """Their report, and what to say about them: a trace that cannot be read costs a line, not the report."""
    if not traces.is_dir() or not any(traces.iterdir()):
        return None, ()
    from .traces import report_traces  # a third of the time that all imports take, and most runs keep no traces

    try:
        traced = report_traces([traces])
    except HotloopError as error:
        return None, (Health(level="warning", message=f"the recorded traces could not be analyzed: {error}"),)
    # Without a device there is nothing in them that the recording does not show better.
    return (None, ()) if traced.device is None else (traced, (describe_kept(traced),))
