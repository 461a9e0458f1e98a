"""Findings -> the part of a step that they do not explain, and one line: what the training waits for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from hotloop.core.analysis import RankAnalysis
from hotloop.core.findings import Finding, Kind, Severity, severity_of
from hotloop.core.memory_snapshot import MemoryFile
from hotloop.core.phases import PHASES, Breakdown, Excluded
from hotloop.core.recording import GAP_FIELDS
from hotloop.core.report import Device, Explained, Health, LineShare, RunParts, StepSummary
from hotloop.core.timeline import IdleCauses
from hotloop.judge.diagnose.completion import rule_of, sums_up
from hotloop.judge.diagnose.lines import (
    own_ns,
)
from hotloop.judge.diagnose.measured import format_bytes, format_time
from hotloop.judge.diagnose.own_code import own_code, unnamed_ns

WAITS = {"input_wait": "input_wait_ns", "checkpoint": "checkpoint_ns", "validation": "nograd_ns"}
"""Phases that are not work of the model, and the field whose samples show their line."""
UNKNOWN_RATIO = 0.05
"""Share of the step; if more than this is without any evidence, the fault is ours."""
_SERIOUS = (Severity.HIGH, Severity.MEDIUM)
LARGE_RATIO = 0.3
"""From this share on, time outside the model or of a fault is reported, whether or not a fix is certain to save
time."""
MOST_RATIO = 0.5
IDLE_RATIO = 0.3
"""A device that idles more than this is not called healthy, whether or not a rule can name the fault."""


def explain_step(rank: RankAnalysis, findings: Sequence[Finding]) -> Explained | None:
    """The four parts of the steady step of one rank, as ratios that sum to 1; None without a steady step."""
    step_ns = float(sum(rank.breakdown.mean_ns(phase) for phase in PHASES))
    if step_ns <= 0:
        return None
    findings = [one for one in findings if not _is_of_the_rest(one)]
    left_ns = unnamed_ns(rank, findings)
    own_ns_by_phase = dict.fromkeys(PHASES, 0.0)
    for one in own_code(rank, findings):
        own_ns_by_phase[one.phase] += one.ns
    unknown_ns = min(left_ns["other"] - min(left_ns["other"], own_ns_by_phase["other"]), _unseen_ns(rank))
    for phase, field in WAITS.items():
        if rank.lines.get(field):
            own_ns_by_phase[phase] += left_ns[phase]
        else:
            unknown_ns += left_ns[phase]
    named = 1.0 - sum(left_ns.values()) / step_ns
    own = sum(own_ns_by_phase.values()) / step_ns
    unknown = unknown_ns / step_ns
    return Explained(
        model_ratio=max(0.0, 1.0 - named - own - unknown),
        named_ratio=named,
        your_code_ratio=own,
        unknown_ratio=unknown,
    )


def divide_run(rank: RankAnalysis) -> RunParts | None:
    """The five parts of one rank's run; None if its start is unknown."""
    left_out = rank.excluded
    if rank.start is None or left_out is None or not left_out.run_ns:
        return None
    steady_ns = left_out.run_ns - left_out.total_ns
    found_ns = {
        phase: steady_ns * rank.breakdown.share(phase)
        + left_out.phase_ns.get(phase, 0)
        + left_out.tail_phase_ns.get(phase, 0)
        for phase in ("validation", "checkpoint")
    }
    tail_ns = left_out.tail_ns - sum(left_out.tail_phase_ns.get(phase, 0) for phase in found_ns)
    whole_ns = rank.start.before_ns + left_out.run_ns
    start, end, validation, checkpoint = (
        max(0.0, ns) / whole_ns for ns in (rank.start.ns, tail_ns, found_ns["validation"], found_ns["checkpoint"])
    )
    return RunParts(
        start_ratio=start,
        training_ratio=max(0.0, 1.0 - start - end - validation - checkpoint),
        validation_ratio=validation,
        checkpoint_ratio=checkpoint,
        end_ratio=end,
    )


def warn_of_unknown(explained: Explained | None, rank: RankAnalysis) -> tuple[Health, ...]:
    """A warning if more of the step than UNKNOWN_RATIO has no evidence, with what was missing."""
    if explained is None or explained.unknown_ratio <= UNKNOWN_RATIO:
        return ()
    samples = sum(line.samples for name in GAP_FIELDS for line in rank.lines.get(name, ()))
    message = (
        f"{explained.unknown_ratio:.0%} of the step is not explained: between its phases, only {samples} stack samples "
        "show a line of your code, which is too few to attribute that time; record a longer run"
    )
    return (Health(level="warning", message=message),)


def _unseen_ns(rank: RankAnalysis) -> float:
    """In the gaps: the time of samples without a line of the user's code, and of gaps without samples."""
    return sum(
        own_ns(rank, name) * (1.0 - min(1.0, sum(line.share_ratio for line in rank.lines.get(name, ()))))
        for name in GAP_FIELDS
    )


def describe_verdict(
    findings: Sequence[Finding], breakdown: Breakdown, step: StepSummary, lines: Sequence[LineShare] = ()
) -> str:
    """The first serious fault, else the first serious opportunity (unless much of the step is outside the model), a
    likely or a large fault, or where the time goes.

    ``lines`` are the lines of every phase, largest share first.
    """
    serious, other = first_serious(findings), breakdown.share("other")
    if serious is not None and (serious.kind is Kind.FAULT or other < LARGE_RATIO):
        return f"{serious.rule}: {serious.title}"
    if step.excluded is not None and step.excluded.ratio >= MOST_RATIO:
        return _describe_excluded(step.excluded)
    likely = first_likely(findings)
    if likely is not None:
        least = "nothing" if likely.severity is Severity.INFO else "little"
        return f"{likely.rule}: {likely.title}; a fix may save a lot or {least}"
    of_steps = (one for one in findings if one.kind is Kind.FAULT and one.base == "steady")
    large = next((one for one in of_steps if (one.cost_ratio or 0.0) >= LARGE_RATIO), None)
    if large is not None:
        return f"{large.rule}: {large.title}; no fix is certain to save much"
    if other >= LARGE_RATIO:
        line = next((one for one in lines if one.phase == "other" and one.share_ratio >= MOST_RATIO), None)
        place = "" if line is None else f", most of it at {os.path.basename(line.file)}:{line.line}"
        return f"{other:.0%} of every step is spent outside the model{place}; no rule can judge whether it is needed"
    own = next((one for one in findings if _is_of_the_rest(one)), None)
    few = (
        f" (only {step.steady_count} steady step{'s' if step.steady_count != 1 else ''})"
        if step.steady_count < 10
        else ""
    )
    if own is not None:
        return f"no serious problem found{few}, but {own.title}"
    return f"no serious problem found{few}; the step is {_largest_phases(breakdown)}"


def _describe_excluded(left_out: Excluded) -> str:
    """Most of the run was not judged: the longest part of it, and what it was spent on."""
    parts = {
        f"the first {_format_steps(left_out.warmup_count)} took": left_out.warmup_ns,
        f"{_format_steps(left_out.later_count)} that were recorded in detail took": left_out.later_ns,
        "the time after the last step took": left_out.tail_ns,
    }
    longest = max(parts, key=lambda part: parts[part])
    is_tail = longest.startswith("the time")
    main_part = (left_out.tail_phase or "").replace("_", " ") if is_tail else left_out.main_part
    why = f", most of it {main_part}" if main_part else ""
    return (
        f"no serious problem in the steady steps, but they are only {1 - left_out.ratio:.0%} of the run: "
        f"{longest} {format_time(parts[longest])}{why}"
    )


def _format_steps(count: int) -> str:
    return "step" if count == 1 else f"{count:,} steps"


def describe_trace_verdict(
    findings: Sequence[Finding],
    breakdown: Breakdown | None,
    device: Device | None,
    idle: IdleCauses | None = None,
    in_steps: bool = False,
) -> str:
    """The same for a profiler's files: without a serious finding, what the device and the host did.

    ``idle`` has the causes of the lead rank's idle time; ``in_steps`` is set if both are of only the complete steps.
    """
    serious = first_serious(findings)
    if serious is not None:
        return f"{serious.rule}: {serious.title}"
    parts = []
    if device is not None and device.idle.share_ratio > IDLE_RATIO:
        why = "" if idle is None else f", {_main_cause(idle)}"
        if idle is not None and idle.gaps_count > 1 and idle.longest_ns >= MOST_RATIO * idle.idle_ns:
            why += f" ({idle.longest_ns / idle.idle_ns:.0%} of it is one gap of {format_time(idle.longest_ns)})"
        whole = "the complete steps" if in_steps else "the trace"
        return f"the device idles {device.idle.share_ratio:.0%} of {whole}{why}; no rule names the problem"
    if device is not None:
        named = (
            ("compute", device.compute),
            ("exposed communication", device.exposed_comm),
            ("exposed copies", device.exposed_mem),
            ("idle", device.idle),
        )
        largest = sorted(named, key=lambda item: -item[1].share_ratio)[:2]
        parts.append("the device: " + " and ".join(f"{name} {part.share_ratio:.0%}" for name, part in largest))
    if breakdown is not None:
        parts.append(f"the step: {_largest_phases(breakdown)}")
    return f"no serious problem found; {'; '.join(parts)}" if parts else "the trace shows no steps and no device work"


def describe_unseen_verdict(findings: Sequence[Finding]) -> str:
    """For a command in which no training was seen: what ended it, if that is known."""
    if findings:
        return f"{findings[0].rule}: {findings[0].title}"
    return "no training was seen in this command: no process completed a backward or an optimizer step"


def describe_memory_verdict(file: MemoryFile) -> str:
    """For a memory snapshot: where the memory is."""
    if not file.devices:
        return "the snapshot contains no device memory"
    worst = max(file.devices, key=lambda one: one.reserved_bytes)
    failures = len(file.out_of_memory)
    failed = f"; {failures} allocation{'s' * (failures > 1)} failed" if failures else ""
    return (
        f"device {worst.device} has {format_bytes(worst.active_bytes)} in use of {format_bytes(worst.reserved_bytes)}"
        f" reserved{failed}"
    )


def first_serious(findings: Sequence[Finding]) -> Finding | None:
    """The finding that the verdict names: the first fault of severity high or medium, else the first such opportunity,
    else the finding that sums up others."""
    serious = [finding for finding in findings if finding.severity in _SERIOUS]
    sums = [finding for finding in serious if sums_up(finding)]
    faults = [one for one in serious if one.kind is Kind.FAULT and one not in sums]
    return next(iter((*faults, *(one for one in serious if one.kind is Kind.OPPORTUNITY), *sums)), None)


def first_likely(findings: Sequence[Finding]) -> Finding | None:
    """The first fault that would be of severity high by its most likely saving, although its low end promises
    little."""
    for one in findings:
        saving = one.saving if one.kind is Kind.FAULT else None
        if saving is not None and severity_of(replace(saving, low_ratio=saving.mid_ratio)) is Severity.HIGH:
            return one
    return None


def _main_cause(idle: IdleCauses) -> str:
    causes = {
        "mostly after the host waited for the device": idle.sync_drained_ns,
        "mostly because the next launch came late": idle.launch_late_ns,
        "mostly waiting for an event, a stream or another rank": idle.queue_dependent_ns,
        "mostly from launch latency": idle.launch_latency_ns,
        "mostly for a reason that the trace does not show": idle.unknown_ns,
    }
    return max(causes, key=lambda cause: causes[cause])


def _largest_phases(breakdown: Breakdown) -> str:
    largest = sorted(breakdown.phases.items(), key=lambda item: -item[1].share_ratio)[:2]
    return " and ".join(f"{name.replace('_', ' ')} {phase.share_ratio:.0%}" for name, phase in largest)


def _is_of_the_rest(finding: Finding) -> bool:
    """Whether it is about what the findings of all other rules leave."""
    own = rule_of(finding)
    return own is not None and own.judge_rest is not None
