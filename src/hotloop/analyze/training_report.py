"""A recorded run -> its Report as far as it restates what was recorded, before anything is judged."""

from __future__ import annotations

from dataclasses import replace

from hotloop import __version__
from hotloop.core.analysis import Analysis
from hotloop.core.redact import redact_command, redact_text
from hotloop.core.report import Health, Report

from .launch import Run
from .outcome import describe_environment, describe_unseen, end_alone, find_outcome
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


def restate_training(run: Run, training: Training, analysis: Analysis) -> Report:
    """One training of a run; ``analysis`` is its own, with what is known beside it."""
    command = (run.manifest or {}).get("command", training.lead.argv)
    return Report(
        tool_version=__version__,
        command=redact_command(command),
        verdict="",
        environment=describe_environment(run.processes, analysis),
        outcome=find_outcome(run, training),
        step=summarize_steps(training),
        breakdown=summarize_breakdown(training),
        device_phases=summarize_device_phases(training),
        memory=summarize_memory(training),
        ranks=end_alone(summarize_ranks(training), find_outcome(run, None)),
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
