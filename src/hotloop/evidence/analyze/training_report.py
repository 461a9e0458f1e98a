"""A run and its training -> the report as far as it restates what was recorded, with the bands of tuning guides."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotloop import __version__
from hotloop.core.analysis import Analysis, DdpFacts
from hotloop.core.findings import Finding, Skipped
from hotloop.core.redact import redact_command, redact_text
from hotloop.core.report import Health, Outcome, RankSummary, Report, ScorecardRow
from hotloop.core.utilization import GOOD_RATIO, LOW_RATIO, TEXT

from .facts import Recording, last_of_kind
from .launch import Run
from .summary import (
    summarize_breakdown,
    summarize_device_phases,
    summarize_lines,
    summarize_memory,
    summarize_overhead,
    summarize_rank,
    summarize_steps,
    summarize_strategy,
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
    """One training of a run; ``analysis`` is its own, with everything else that is known about it."""
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
        ranks=end_alone(tuple(map(summarize_rank, training.processes)), find_outcome(run, None)),
        hosts=training.hosts,
        attempts=training.attempts,
        health=(
            *warn_of_excluded(training),
            *(replace(health, message=redact_text(health.message)) for health in training.health),
        ),
        overhead=summarize_overhead(training),
        timelines=tuple(process.timeline for process in training.processes),
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
    """How the command ended; the processes' own reports distinguish an exception from a plain exit code."""
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
    """The first process's report about itself, by the agent's allow-list; and the lead process's compute type,
    sharding, recomputation and compression: None if not seen."""
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
    """The ranks; a single process that could not report how it ended is assumed to have ended like the command."""
    if len(ranks) == 1 and ranks[0].ended is None:
        return (replace(ranks[0], ended=outcome.ended),)
    return ranks


# ---- with the traces that a run kept (``hotloop run --trace``)


def describe_kept(traced: Report) -> Health:
    """Says where the run's figures of the device come from."""
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
    """The ranks with the work of their devices, if their trace shows it."""
    by_rank = {} if traced is None else {one.rank: one.device for one in traced.ranks if one.device is not None}
    return tuple(replace(one, device=by_rank.get(one.rank, one.device)) for one in ranks)


GOOD, FAIR, BAD, UNKNOWN = "good", "fair", "bad", "unknown"

PHASE_BANDS = {"forward": (0.30, 0.40), "backward": (0.40, 0.50), "optimizer": (0.05, 0.10)}
"""Shares of the step that guides call typical, 0..1."""


def build_scorecard(analysis: Analysis) -> tuple[ScorecardRow, ...]:
    """One row per band; if nothing was measured, ``measured_ratio`` is None and the verdict is unknown."""
    # If no DataLoader gave a batch, the loop makes its own, and no wait shows how long that takes.
    has_loader = analysis.share("input_wait") > 0 or any(rank.mean["batches"] > 0 for rank in analysis.ranks)
    data_wait = analysis.share("input_wait") if has_loader else None
    copies = analysis.share("h2d") if analysis.accelerator else None
    # Overlapped communication is included, as it is in the guides' figure: it shows how much there is to overlap.
    all_reduce = _mean_over_backward(analysis, lambda ddp: ddp.comm_ns)
    shares = {phase: analysis.share(phase) for phase in PHASE_BANDS}
    # A loop that updates its parameters by hand has that time in other.
    has_optimizer = shares["optimizer"] > 0 or any(rank.optimizers for rank in analysis.ranks)
    used = analysis.utilization
    return (
        replace(
            _rate("data wait, share of the step", data_wait, low_is_good=(0.10, 0.30)),
            reason="" if has_loader else "no DataLoader was seen in the loop",
        ),
        _rate("host-to-device copies, share of the step", copies, low_is_good=(0.05, 0.15)),
        _rate("all-reduce (hidden part too) over backward", all_reduce, low_is_good=(0.15, 0.30)),
        # No guide gives a band for it: the row is here because overlapped communication costs nothing.
        _rate("exposed all-reduce over backward", _mean_over_backward(analysis, lambda ddp: ddp.exposed_comm_ns)),
        # A small share is no merit and a large one no fault: what is typical stands next to it.
        *(
            replace(
                _rate(f"{phase}, share of the step", shares[phase] if phase != "optimizer" or has_optimizer else None),
                reason=f"typical {low * 100:.0f}–{high * 100:.0f}%",
            )
            for phase, (low, high) in PHASE_BANDS.items()
        ),
        _rate_device(used.device_ratio)
        if analysis.accelerator
        else _rate(TEXT["cpu_utilization_ratio"], used.cpu_utilization_ratio),
        # MFU has no band that fits all models.
        _rate(TEXT["mfu_ratio"], used.mfu_ratio),
    )


def _rate(name: str, ratio: float | None, low_is_good: tuple[float, float] | None = None) -> ScorecardRow:
    """A row judged by what is good below and bad above; unknown without it."""
    good, bad, verdict = "", "", UNKNOWN
    if low_is_good is not None:
        good, bad = f"below {low_is_good[0]:.0%}", f"above {low_is_good[1]:.0%}"
        verdict = GOOD if (ratio or 0.0) < low_is_good[0] else BAD if (ratio or 0.0) > low_is_good[1] else FAIR
    return ScorecardRow(
        name=name, measured_ratio=ratio, good=good, bad=bad, verdict=UNKNOWN if ratio is None else verdict
    )


def _rate_device(ratio: float | None) -> ScorecardRow:
    verdict = UNKNOWN if ratio is None else GOOD if ratio >= GOOD_RATIO else BAD if ratio < LOW_RATIO else FAIR
    return ScorecardRow(
        name=TEXT["utilization_ratio"],
        measured_ratio=ratio,
        good=f"from {GOOD_RATIO:.0%}",
        bad=f"below {LOW_RATIO:.0%}",
        verdict=verdict,
    )


def _mean_over_backward(analysis: Analysis, choose: Callable[[DdpFacts], float | None]) -> float | None:
    """Time in gradient collectives over that of all backwards of a step, mean over ranks; None if no rank has it."""
    ratios = []
    for rank in analysis.ranks:
        chosen_ns = None if rank.ddp is None else choose(rank.ddp)
        synced, backward_ns = rank.mean["synced_backwards"], rank.mean["backward_ns"]
        if chosen_ns is not None and synced > 0 and backward_ns > 0:
            ratios.append(chosen_ns * synced / backward_ns)
    return sum(ratios) / len(ratios) if ratios else None
