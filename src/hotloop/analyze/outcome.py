"""What a launcher and the processes say of the end of a run -> its Outcome; and how the training was set up."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotloop.core.analysis import Analysis
from hotloop.core.redact import redact_text
from hotloop.core.report import Health, Outcome, RankSummary

from .facts import last_of_kind
from .launch import Run
from .process import Recording
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


def find_outcome(run: Run, training: Training | None) -> Outcome:
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
        notes.append("steps that only replay a CUDA graph are not seen")
    return tuple(Health(level="warning", message=note) for note in notes)


def end_alone(ranks: tuple[RankSummary, ...], outcome: Outcome) -> tuple[RankSummary, ...]:
    """The ranks; a single process that could not say how it ended ended as the command did."""
    if len(ranks) == 1 and ranks[0].ended is None:
        return (replace(ranks[0], ended=outcome.ended),)
    return ranks
