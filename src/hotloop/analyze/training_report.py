"""A recorded run -> its Report as far as it restates what was recorded, before anything is judged."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotloop import __version__
from hotloop.core.analysis import Analysis
from hotloop.core.findings import Finding, Skipped
from hotloop.core.redact import redact_command, redact_text
from hotloop.core.report import Health, Outcome, RankSummary, Report

from .facts import last_of_kind
from .launch import Run
from .process import Recording
from .scorecard import build_scorecard
from .summary import (
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
from .trainings import Training

ENVIRONMENT = (
    "torch",
    "python",
    "host",
    "cores",
    "torch_threads",
    "accelerator",
    "device_name",
    "memory_total_bytes",
)


def restate_training(run: Run, training: Training, analysis: Analysis) -> Report:
    """One training of a run; ``analysis`` is its own, with what is known beside it."""
    command = (run.manifest or {}).get("command", training.lead.argv)
    return Report(
        tool_version=__version__,
        command=redact_command(command),
        verdict="",
        environment=describe_environment(run.processes, analysis),
        outcome=find_outcome(run, training),
        step=replace(summarize_steps(training), mfu_ratio=analysis.utilization.mfu_ratio),
        utilization=analysis.utilization,
        breakdown=summarize_breakdown(training),
        device_phases=summarize_device_phases(training),
        memory=summarize_memory(training),
        ranks=end_alone(summarize_ranks(training), find_outcome(run, None)),
        hosts=training.hosts,
        attempts=training.attempts,
        health=(
            *warn_of_excluded(training),
            *(replace(health, message=redact_text(health.message)) for health in training.health),
        ),
        overhead=summarize_overhead(training),
        timelines=summarize_timelines(training),
        lines=summarize_lines(training),
        scorecard=build_scorecard(analysis),
        strategy=summarize_strategy(training),
    )


def restate_unseen(run: Run) -> Report:
    """A run in which no training was seen, and why that may be."""
    manifest = run.manifest or {}
    return Report(
        tool_version=__version__,
        command=redact_command(manifest.get("command", ())),
        verdict="",
        outcome=find_outcome(run, None),
        health=describe_unseen(manifest, run.outcome, run.processes),
    )


def describe_reading(run: Run) -> tuple[Health, ...]:
    """What could not be read of a run, or was lost."""
    return tuple(Health(level="warning", message=redact_text(message)) for message in run.health)


def find_outcome(run: Run, training: Training | None) -> Outcome:
    """How the command ended; what the processes themselves said tells an exception from a plain exit code."""
    outcome = run.outcome
    ended_as = training.lead.ended if training is not None else None
    ends = [last_of_kind(process.facts, "end").get("ended") for process in run.processes]
    if "oom" in ends:  # one rank's error ends the others by a signal
        ended_as = "oom"
    if outcome is None:
        ended = ended_as if ended_as is not None else "unknown" if run.outcome_lost else "running"
        return Outcome(ended=ended, exit_code=None, signal=None, training_seen=training is not None)
    number = outcome.get("signal")
    name = signal.Signals(number).name if isinstance(number, int) and number in set(signal.Signals) else None
    if number is not None:
        ended = "signal"
        if number == signal.SIGKILL:
            ended = "oom" if outcome.get("oom_kills") else "killed"
    else:
        ended = "completed"
        if outcome.get("exit_code") and ended_as in ("exception", "oom"):
            ended = ended_as
        elif outcome.get("exit_code") and outcome.get("oom_kills") and None in ends:
            ended = "oom"  # the kernel killed a process of the launcher
    exit_code = None if number is not None else outcome.get("exit_code")
    return Outcome(ended=ended, exit_code=exit_code, signal=name, training_seen=training is not None)


def describe_environment(recordings: Sequence[Recording], analysis: Analysis) -> dict[str, Any]:
    """What the first process said of itself, by the agent's allow-list; and of the lead process what it computes in,
    shards, computes again or compresses: None where that was not seen."""
    process = recordings[0].process if recordings else {}
    described: dict[str, Any] = {name: process.get(name) for name in ENVIRONMENT}
    variables = process.get("environment")
    if isinstance(variables, Mapping):
        described["variables"] = {str(k): redact_text(str(v)) for k, v in variables.items()}
    lead = analysis.lead
    has_zero = any(one.name == "ZeroRedundancyOptimizer" for one in lead.optimizers)
    return described | {
        "model_dtype": lead.model_dtype,
        "autocast_dtype": lead.autocast_dtype,
        "is_sharded": lead.model_is_sharded or has_zero or None,
        "is_checkpointing": lead.checkpointing,
        "comm_hook": None if lead.ddp is None else lead.ddp.comm_hook,
    }


def describe_unseen(
    manifest: Mapping[str, Any], outcome: Mapping[str, Any] | None, recordings: Sequence[Recording]
) -> tuple[Health, ...]:
    """Why no training may have been seen in a command."""
    notes = [str(note) for note in manifest.get("notes", ())]
    unattached = (outcome or {}).get("unattached")
    if isinstance(unattached, str) and not notes:
        notes.append(redact_text(unattached[:400]))
    if any(one.process.get("accelerator") for one in recordings):
        notes.append("steps that only replay a CUDA graph cannot be observed")
    return tuple(Health(level="warning", message=note) for note in notes)


def end_alone(ranks: tuple[RankSummary, ...], outcome: Outcome) -> tuple[RankSummary, ...]:
    """The ranks; a single process that could not say how it ended ended as the command did."""
    if len(ranks) == 1 and ranks[0].ended is None:
        return (replace(ranks[0], ended=outcome.ended),)
    return ranks


# ---- with the traces that a run kept (``hotloop run --trace``)


def describe_kept(traced: Report) -> Health:
    """Where the run's figures of the device are from."""
    steps = traced.step.count if traced.step is not None else 0
    message = f"device figures are from {steps} steps of the run traced by torch.profiler"
    return Health(level="info", message=message)


def add_findings(
    found: Sequence[Finding], skipped: Sequence[Skipped], traced: Report | None
) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """The run's findings with those of the rules that only its traces could judge."""
    if traced is None:
        return tuple(found), tuple(skipped)
    missing = {one.rule for one in skipped} - {one.rule for one in found}
    still = {one.rule for one in traced.skipped}
    more = tuple(one for one in traced.findings if one.rule in missing)
    return (*found, *more), tuple(one for one in skipped if one.rule in still)


def add_devices(ranks: Iterable[RankSummary], traced: Report | None) -> tuple[RankSummary, ...]:
    """The ranks with what their device did, where their trace shows it."""
    by_rank = {} if traced is None else {one.rank: one.device for one in traced.ranks if one.device is not None}
    return tuple(replace(one, device=by_rank.get(one.rank, one.device)) for one in ranks)
