"""A run and its training -> the report as far as it restates what was recorded, beside the bands of tuning guides."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


GOOD, FAIR, BAD, UNKNOWN = "good", "fair", "bad", "unknown"

PHASE_BANDS = (("forward", 0.30, 0.40), ("backward", 0.40, 0.50), ("optimizer", 0.05, 0.10))
"""Shares of the step that guides call typical, 0..1."""


def build_scorecard(analysis: Analysis) -> tuple[ScorecardRow, ...]:
    """One row per band; ``measured_ratio`` is None, and the verdict unknown, where nothing was measured."""
    return (
        _rate_data_wait(analysis),
        _lower_is_better(
            "host-to-device copies, share of the step",
            analysis.share("h2d") if analysis.accelerator else None,
            0.05,
            0.15,
        ),
        _lower_is_better("all-reduce (hidden part too) over backward", measure_all_reduce_ratio(analysis), 0.15, 0.30),
        # No guide gives a band for it: it stands there because what is hidden costs nothing.
        ScorecardRow(
            name="exposed all-reduce over backward",
            measured_ratio=measure_exposed_ratio(analysis),
            good="",
            bad="",
            verdict=UNKNOWN,
        ),
        *(
            _within_band(f"{phase}, share of the step", _phase_share(analysis, phase), low, high)
            for phase, low, high in PHASE_BANDS
        ),
        *_list_utilization(analysis),
    )


def _list_utilization(analysis: Analysis) -> Iterator[ScorecardRow]:
    """The device's where there is one, else the cores'; MFU has no band that fits all models, so it has none here."""
    used = analysis.utilization
    names = ["utilization_ratio" if analysis.accelerator else "cpu_utilization_ratio", "mfu_ratio"]
    for name in names:
        ratio = used.device_ratio if name == "utilization_ratio" else getattr(used, name)
        band = name == "utilization_ratio"
        verdict = UNKNOWN
        if band and ratio is not None:
            verdict = GOOD if ratio >= GOOD_RATIO else BAD if ratio < LOW_RATIO else FAIR
        yield ScorecardRow(
            name=TEXT[name],
            measured_ratio=ratio,
            good=f"from {GOOD_RATIO:.0%}" if band else "",
            bad=f"below {LOW_RATIO:.0%}" if band else "",
            verdict=verdict,
        )


def measure_all_reduce_ratio(analysis: Analysis) -> float | None:
    """Time in gradient collectives over the time of all backwards of a step, mean over ranks.

    Overlapped communication is included, as it is in the guides' figure: it says how much there is to hide, not what
    is lost. None when it was not measured on any rank.
    """
    return _mean_over_backward(analysis, lambda ddp: ddp.comm_ns)


def measure_exposed_ratio(analysis: Analysis) -> float | None:
    """The part of ``measure_all_reduce_ratio`` that no computation hides."""
    return _mean_over_backward(analysis, lambda ddp: ddp.exposed_comm_ns)


def _mean_over_backward(analysis: Analysis, choose: Callable[[DdpFacts], float | None]) -> float | None:
    ratios = []
    for rank in analysis.ranks:
        chosen_ns = None if rank.ddp is None else choose(rank.ddp)
        synced = rank.mean["synced_backwards"]
        if chosen_ns is None or synced <= 0 or rank.mean["backward_ns"] <= 0:
            continue
        ratios.append(chosen_ns * synced / rank.mean["backward_ns"])
    return sum(ratios) / len(ratios) if ratios else None


def _rate_data_wait(analysis: Analysis) -> ScorecardRow:
    """Unknown where no DataLoader gave a batch: the loop makes its own, and no wait tells what that takes."""
    is_seen = analysis.share("input_wait") > 0 or any(rank.mean["batches"] > 0 for rank in analysis.ranks)
    row = _lower_is_better(
        "data wait, share of the step", analysis.share("input_wait") if is_seen else None, 0.10, 0.30
    )
    return row if is_seen else replace(row, reason="no DataLoader was seen in the loop")


def _lower_is_better(name: str, measured_ratio: float | None, good_ratio: float, bad_ratio: float) -> ScorecardRow:
    if measured_ratio is None:
        verdict = UNKNOWN
    elif measured_ratio < good_ratio:
        verdict = GOOD
    else:
        verdict = BAD if measured_ratio > bad_ratio else FAIR
    return ScorecardRow(
        name=name,
        measured_ratio=measured_ratio,
        good=f"below {good_ratio:.0%}",
        bad=f"above {bad_ratio:.0%}",
        verdict=verdict,
    )


def _phase_share(analysis: Analysis, phase: str) -> float | None:
    """None for the optimizer of a loop that updates its parameters by hand: its time stands in other."""
    if phase == "optimizer" and not any(rank.optimizers for rank in analysis.ranks):
        return analysis.share(phase) or None
    return analysis.share(phase)


def _within_band(name: str, measured_ratio: float | None, low_ratio: float, high_ratio: float) -> ScorecardRow:
    judged = GOOD if measured_ratio is not None and low_ratio <= measured_ratio <= high_ratio else FAIR
    return ScorecardRow(
        name=name,
        measured_ratio=measured_ratio,
        good=f"{low_ratio * 100:.0f}–{high_ratio * 100:.0f}%",
        bad="",
        verdict=UNKNOWN if measured_ratio is None else judged,
    )
