"""A run folder -> a Report."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotloop import __version__
from hotloop.analyze.facts import last_of_kind
from hotloop.analyze.memory_end import find_memory_failures
from hotloop.analyze.scorecard import build_scorecard
from hotloop.analyze.summary import (
    summarize_breakdown,
    summarize_device_phases,
    summarize_lines,
    summarize_memory,
    summarize_overhead,
    summarize_ranks,
    summarize_steps,
    summarize_strategy,
    summarize_timelines,
    warn_of_excluded,
)
from hotloop.analyze.trainings import Training, analyze_run
from hotloop.apply import ACTS
from hotloop.core.acts import fill_fixes
from hotloop.core.analysis import Analysis, Forecast
from hotloop.core.findings import Finding
from hotloop.core.redact import redact_command, redact_text
from hotloop.core.report import Health, Outcome, Report
from hotloop.core.rules import sign
from hotloop.diagnose import find_problems
from hotloop.diagnose.rules.out_of_memory import describe_failures
from hotloop.diagnose.verdict import describe_verdict, first_serious
from hotloop.prescribe import combine_savings, rank_findings, state_rule_savings
from hotloop.trace.recording import RunRecording, find_run, read_run
from hotloop.tune.history import NAME as HISTORY
from hotloop.tune.history import read_history

from .host_load import describe_load, read_host_load
from .kept import Timelines, add_devices, add_findings, read_kept_traces
from .telemetry import read_telemetry

Forecasts = Mapping[str, Forecast]
Probe = Callable[[RunRecording, Training], Forecasts]
"""Measures what techniques would win for this training, in a child process."""


def no_probe(run: RunRecording, training: Training) -> Forecasts:
    """Nothing is measured: opportunities stay at most low."""
    return {}


def read_report(run: str | Path = "last", *, root: Path | None = None, probe: Probe = no_probe) -> Report:
    """The report of a recorded run: a folder, a name under ``.hotloop/`` of ``root`` (default: here), or 'last'.

    Raises RecordingError when there is nothing to read.
    """
    folder = find_run(str(run), root or Path.cwd())
    return report_run(read_run(folder), folder=folder, probe=probe)


def report_run(run: RunRecording, *, folder: Path, probe: Probe = no_probe) -> Report:
    """Analyse, diagnose and prescribe; the largest training of the run on top, all of them in ``runs``."""
    trainings = analyze_run(run.processes)
    health = tuple(Health(level="warning", message=redact_text(message)) for message in run.health)
    health += read_telemetry(folder)
    manifest = run.manifest or {}
    if not trainings:
        return _report_nothing(run, manifest, health, folder)
    reports = []
    timelines = read_kept_traces(folder)
    for training in trainings:
        # With several trainings nothing tells whose traces were kept.
        own = timelines if len(trainings) == 1 else Timelines()
        reports.append(_report_training(run, manifest, training, health, folder, probe(run, training), own))
    return replace(reports[0], runs=tuple(reports) if len(reports) > 1 else ())


def _report_training(
    run: RunRecording,
    manifest: Mapping[str, Any],
    training: Training,
    health: tuple[Health, ...],
    folder: Path,
    forecasts: Forecasts,
    timelines: Timelines,
) -> Report:
    outcome = _outcome(run, training)
    analysis = _with_forecasts(training.analysis, forecasts)
    if outcome.ended == "oom":
        analysis = replace(analysis, memory_failures=find_memory_failures(run.processes))
    found, skipped = add_findings(*find_problems(analysis), timelines)
    breakdown = summarize_breakdown(training)
    ranked = state_rule_savings(rank_findings(found), breakdown)
    findings = fill_fixes(ranked, ACTS)
    return Report(
        tool_version=__version__,
        command=redact_command(manifest.get("command", training.lead.argv)),
        environment=_environment(run) | _describe_precision(analysis) | _describe_memory_savers(analysis),
        outcome=outcome,
        verdict=describe_verdict(findings, breakdown, summarize_steps(training), summarize_lines(training)),
        step=summarize_steps(training),
        breakdown=breakdown,
        device=timelines.device,
        device_phases=summarize_device_phases(training),
        memory=summarize_memory(training),
        ranks=add_devices(_with_outcome(run, summarize_ranks(training)), timelines),
        findings=findings,
        combined_saving=combine_savings(findings, breakdown),
        forecast_history=read_history(folder.parent / HISTORY),
        skipped=skipped,
        health=(
            *health,
            *describe_load(read_host_load(folder, run, training)),
            *timelines.health,
            *warn_of_excluded(training),
            *(replace(h, message=redact_text(h.message)) for h in training.health),
        ),
        overhead=summarize_overhead(training),
        next_command=_next_command(findings, folder),
        timelines=summarize_timelines(training),
        lines=summarize_lines(training),
        scorecard=build_scorecard(analysis),
        run_folder=str(folder),
        strategy=summarize_strategy(training),
    )


def _report_nothing(run: RunRecording, manifest: Mapping[str, Any], health: tuple[Health, ...], folder: Path) -> Report:
    outcome = _outcome(run, None)
    failures = find_memory_failures(run.processes) if outcome.ended == "oom" else ()
    findings = fill_fixes((sign(one, "out-of-memory") for one in describe_failures(failures)), ACTS)
    notes = tuple(Health(level="warning", message=str(n)) for n in manifest.get("notes", ()))
    unattached = (run.outcome or {}).get("unattached")
    if isinstance(unattached, str) and not notes:
        notes += (Health(level="warning", message=redact_text(unattached[:400])),)
    if any(p.process.get("accelerator") for p in run.processes):
        notes += (Health(level="warning", message="steps that only replay a CUDA graph are not seen"),)
    return Report(
        tool_version=__version__,
        command=redact_command(manifest.get("command", ())),
        environment={},
        outcome=outcome,
        verdict=f"{findings[0].rule}: {findings[0].title}"
        if findings
        else "no training was seen in this command: no process completed a backward or an optimizer step",
        step=None,
        breakdown=None,
        device=None,
        memory=None,
        ranks=(),
        findings=findings,
        combined_saving=None,
        forecast_history=read_history(folder.parent / HISTORY),
        skipped=(),
        health=(*notes, *health),
        overhead=None,
        next_command=None,
        run_folder=str(folder),
    )


def _with_forecasts(analysis: Analysis, forecasts: Forecasts) -> Analysis:
    return replace(analysis, ranks=tuple(replace(r, forecasts=forecasts) for r in analysis.ranks))


def _environment(run: RunRecording) -> dict[str, Any]:
    """What the lead process said of itself, by the agent's allow-list."""
    process = run.processes[0].process if run.processes else {}
    names = ("torch", "python", "host", "cores", "torch_threads", "accelerator", "device_name", "memory_total_bytes")
    described: dict[str, Any] = {name: process.get(name) for name in names}
    variables = process.get("environment")
    if isinstance(variables, Mapping):
        described["variables"] = {str(k): redact_text(str(v)) for k, v in variables.items()}
    return described


def _describe_precision(analysis: Analysis) -> dict[str, Any]:
    """What the lead process computes in; None where no model or autocast was seen."""
    return {"model_dtype": analysis.lead.model_dtype, "autocast_dtype": analysis.lead.autocast_dtype}


def _describe_memory_savers(analysis: Analysis) -> dict[str, Any]:
    """What the lead process shards, computes again or compresses; None where that was not seen."""
    lead = analysis.lead
    return {
        "is_sharded": lead.model_is_sharded
        or any(one.name == "ZeroRedundancyOptimizer" for one in lead.optimizers)
        or None,
        "is_checkpointing": lead.checkpointing,
        "comm_hook": None if lead.ddp is None else lead.ddp.comm_hook,
    }


def _outcome(run: RunRecording, training: Training | None) -> Outcome:
    """How the command ended; what the processes themselves said tells an exception from a plain exit code."""
    outcome = run.outcome
    said = training.lead.ended if training is not None else None
    ends = [last_of_kind(process.facts, "end").get("ended") for process in run.processes]
    if "oom" in ends:  # one rank's error ends the others by a signal
        said = "oom"
    if outcome is None:
        ended = said if said is not None else "unknown" if run.outcome_lost else "running"
        return Outcome(ended=ended, exit_code=None, signal=None, training_seen=training is not None)
    number = outcome.get("signal")
    name = signal.Signals(number).name if isinstance(number, int) and number in set(signal.Signals) else None
    if number is not None:
        ended = "signal"
        if number == signal.SIGKILL:
            ended = "oom" if outcome.get("oom_kills") else "killed"
    else:
        ended = "completed"
        if outcome.get("exit_code") and said in ("exception", "oom"):
            ended = said
        elif outcome.get("exit_code") and outcome.get("oom_kills") and None in ends:
            ended = "oom"  # the kernel killed a process of the launcher
    exit_code = None if number is not None else outcome.get("exit_code")
    return Outcome(ended=ended, exit_code=exit_code, signal=name, training_seen=training is not None)


def _with_outcome(run: RunRecording, ranks: tuple[Any, ...]) -> tuple[Any, ...]:
    """A single process that could not say how it ended ended as the command did."""
    if len(ranks) == 1 and ranks[0].ended is None:
        return (replace(ranks[0], ended=_outcome(run, None).ended),)
    return ranks


def _next_command(findings: tuple[Finding, ...], folder: Path) -> str:
    if findings:
        # The last line says more of what the first line named.
        return f"hotloop rule {(first_serious(findings) or findings[0]).rule}"
    return f"hotloop report {folder.name} --html report.html"
