"""Report: the one value that every renderer draws, and its JSON contract hotloop.report/1 (docs/formats.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .applied import AppliedTechnique
from .decode import decode_contract, to_plain
from .errors import RecordingError
from .findings import Finding, Skipped, Value
from .hosts import Attempt, HostClock
from .memory_snapshot import MemoryFile
from .phases import PHASES, Breakdown, Excluded
from .trace_analysis import TraceAnalysis, format_device, format_step_windows
from .tuning import Tuning
from .utilization import Utilization

SCHEMA = "hotloop.report/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the training ended. ``exit_code`` is None if a signal ended it."""

    ended: str
    exit_code: int | None
    signal: str | None
    training_seen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """The steps of the run; times in ns over steady steps, rates per second, None if unmeasured."""

    count: int
    steady_count: int
    unit: str
    units_per_step: float | None
    mean_ns: int
    median_ns: int
    p95_ns: int
    cv_ratio: float | None
    tail_ns: int | None
    time_to_first_step_ns: int | None
    batches_per_s: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    units_noise_ratio: float | None = None
    """Standard error of ``units_per_step`` over it, because not every batch was read; 0 if every batch was."""
    unit_drift: Mapping[str, float] | None = None
    """Units per step in the ``first_third`` and ``last_third`` of the steady steps; None if they do not drift."""
    excluded: Excluded | None = None
    """The part of the run outside the steady steps, of the lead rank; None if a file does not show the run."""
    explained: Explained | None = None
    """The parts of the steady step; None if a file does not show which lines ran."""
    run_parts: RunParts | None = None
    """The parts of the run; None if its start is unknown."""
    mfu_ratio: float | None = None
    """As in Report.utilization."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySummary:
    """Host memory if no accelerator is used (RSS), else the accelerator's. None if unmeasured."""

    peak_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    total_bytes: int | None
    peak_ratio: float | None
    growth_bytes_per_step: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePart:
    total_ns: int
    share_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Partition of the accelerator's time; claimed only from a kernel timeline."""

    compute: DevicePart
    exposed_comm: DevicePart
    exposed_mem: DevicePart
    idle: DevicePart
    busy_ratio: float | None = None
    sm_active_ratio: float | None = None
    utilization_ratio: float | None = None
    """These two as in Report.utilization."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePhase:
    """Device time next to host time of one phase: means per step over the same ``steps_count`` steps, over all ranks.

    The device's time is between a pair of events and includes what the device waited meanwhile. It is therefore not a
    partition, and the rest of the step is not idle time.
    """

    phase: str
    device_mean_ns: int
    host_mean_ns: int
    steps_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    rank: int | None
    local_rank: int | None
    host: str
    pid: int
    restart: int
    world_size: int
    anchor: str
    steps: int
    skipped_steps: int
    ended: str | None
    mean_ns: int
    median_ns: int
    breakdown: Breakdown | None
    device: Device | None
    memory: MemorySummary
    lost_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    level: str
    """info, warning or error."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedSaving:
    techniques: tuple[str, ...]
    low_ratio: float
    mid_ratio: float
    high_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What hotloop itself cost the training. ``share_ratio`` is of the run's step time.

    ``probe_ns`` is not a part of it: the command measured so long after the training had ended.
    """

    hooks_ns: int | None
    sampler_ns: int | None
    deep_window_ns: int | None
    share_ratio: float | None
    memory_bytes: int | None
    method: str
    probe_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Means per bucket of consecutive steps of one rank, for drawing only (not in the JSON contract's core).

    ``first_step`` has one entry per bucket; ``phase_ns[phase]`` is the mean ns per step in each bucket,
    ``excluded_ratio`` the share of its steps that are not steady (empty if unknown).
    """

    rank: int | None
    first_step: tuple[int, ...]
    phase_ns: Mapping[str, tuple[int, ...]]
    excluded_ratio: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LineShare:
    """A line of the user's code and its share of a phase's stack samples, 0..1."""

    phase: str
    file: str
    line: int
    function: str
    share_ratio: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorecardRow:
    """A band of the usual tuning guides with what was measured; ``verdict`` is good, fair, bad or unknown."""

    name: str
    measured_ratio: float | None
    good: str
    bad: str
    verdict: str
    reason: str = ""
    """Why nothing was measured, unless that is a matter of course; or the typical range of what is not judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    tool_version: str
    command: tuple[str, ...]
    verdict: str
    environment: Mapping[str, Value] = field(default_factory=dict)
    outcome: Outcome | None = None
    step: StepSummary | None = None
    breakdown: Breakdown | None = None
    device: Device | None = None
    utilization: Utilization | None = None
    memory: MemorySummary | None = None
    ranks: tuple[RankSummary, ...] = ()
    hosts: tuple[HostClock, ...] = ()
    """Empty if no host is known."""
    attempts: tuple[Attempt, ...] = ()
    """In order of time; the other figures are of the last attempt. Empty for files of a profiler."""
    findings: tuple[Finding, ...] = ()
    combined_saving: CombinedSaving | None = None
    forecast_history: Mapping[str, Value] = field(default_factory=lambda: {"n": 0, "median_abs_error": None})
    skipped: tuple[Skipped, ...] = ()
    health: tuple[Health, ...] = ()
    overhead: Overhead | None = None
    next_command: str | None = None
    timelines: tuple[Timeline, ...] = ()
    lines: tuple[LineShare, ...] = ()
    scorecard: tuple[ScorecardRow, ...] = ()
    runs: tuple[Report, ...] = field(default=())
    run_folder: str | None = None
    trace: TraceAnalysis | None = None
    """The files of a profiler that the report was made from; None for a recorded run."""
    device_phases: tuple[DevicePhase, ...] = ()
    memory_files: tuple[MemoryFile, ...] = ()
    """Memory snapshots and timelines that the report was made from."""
    strategy: tuple[AppliedTechnique, ...] = ()
    """The changes by the strategy of the run; empty without a strategy."""
    tune: Tuning | None = None
    """The trials of ``hotloop tune`` whose baseline is this report's run."""

    def to_json(self) -> dict[str, Any]:
        """The report as the plain dict of schema hotloop.report/1, ready for json.dumps."""
        return report_to_json(self)

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Report:
        """The report that ``to_json`` wrote, possibly with another version: unknown keys are ignored.

        Raises RecordingError if a value does not match the schema.
        """
        try:
            fields = _as_fields(content)
        except (KeyError, TypeError, AttributeError) as error:
            raise RecordingError(f"the file is not a report: {error!r}") from None
        return decode_contract(Report, fields)


_ALWAYS = (
    *("command", "environment", "outcome", "verdict", "step", "breakdown", "device", "memory", "ranks", "findings"),
    *("combined_saving", "forecast_history", "skipped", "health", "overhead", "timelines", "lines", "scorecard"),
    *("device_phases", "strategy", "utilization", "hosts", "attempts"),
)
"""Fields that every report's JSON contains as they are, in their order."""


def report_to_json(report: Report) -> dict[str, Any]:
    """The report as the plain dict of schema hotloop.report/1, ready for json.dumps."""
    out: dict[str, Any] = {"schema": SCHEMA, "tool": {"version": report.tool_version}}
    out |= {name: to_plain(getattr(report, name)) for name in _ALWAYS}
    out["breakdown"] = _breakdown_to_json(report.breakdown)
    out["ranks"] = [_rank_to_json(r) for r in report.ranks]
    out["findings"] = [_finding_to_json(f) for f in report.findings]
    out["next"] = report.next_command
    if report.trace is not None:
        out["trace"] = to_plain(report.trace)
        for summary, rank in zip(out["ranks"], report.trace.ranks, strict=True):
            device = format_device(rank)
            summary["device"] = None if device is None else {**(summary["device"] or {}), **device}
            summary["step_windows"] = format_step_windows(rank)
    if report.memory_files:
        out["memory_files"] = to_plain(report.memory_files)
    if report.tune is not None:
        out["tune"] = to_plain(report.tune)
    if report.runs:
        out["runs"] = [report_to_json(r) for r in report.runs]
    if report.run_folder is not None:
        out["run_folder"] = report.run_folder
    return out


def _as_fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """The report's JSON with the keys of the fields that ``report_to_json`` writes in another form."""
    named = {"next_command": content.get("next"), "breakdown": _phases_of(content)}
    named["ranks"] = [{**rank, "breakdown": _phases_of(rank), "device": _device_of(rank)} for rank in content["ranks"]]
    named["findings"] = [{**finding, "severity_override": finding["severity"]} for finding in content["findings"]]
    named["runs"] = [{**_as_fields(run), "tool_version": run["tool"]["version"]} for run in content.get("runs", ())]
    return {**content, **named}


def _phases_of(content: Mapping[str, Any]) -> dict[str, Any] | None:
    return None if content["breakdown"] is None else {"phases": content["breakdown"]}


def _device_of(rank: Mapping[str, Any]) -> dict[str, Any] | None:
    """None for the device of a trace's rank, which its timeline holds."""
    return rank["device"] if rank["device"] is None or "compute" in rank["device"] else None


def _breakdown_to_json(breakdown: Breakdown | None) -> dict[str, Any] | None:
    if breakdown is None:
        return None
    return {name: to_plain(breakdown.phases[name]) for name in PHASES}


def _rank_to_json(rank: RankSummary) -> dict[str, Any]:
    out: dict[str, Any] = to_plain(rank)
    out["breakdown"] = _breakdown_to_json(rank.breakdown)
    return out


def _finding_to_json(finding: Finding) -> dict[str, Any]:
    out: dict[str, Any] = to_plain(finding)
    del out["severity_override"]
    out["severity"] = finding.severity.value
    if finding.bound is None:
        del out["bound"]
    if finding.fix is not None:
        del out["fix"]["act"], out["fix"]["by_hand"]
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Shares of the steady step's wall time on the lead rank; they sum to 1."""

    model_ratio: float
    """Forward, backward, optimizer, copies and collectives that no finding blames."""
    named_ratio: float
    """What a finding of a specific rule owns."""
    your_code_ratio: float
    """Lines of the script that are known, although it is unknown whether the training needs them."""
    unknown_ratio: float
    """No evidence shows what it was spent on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """Shares of the wall time of the lead rank's run, from the import of torch to its end; they sum to 1."""

    start_ratio: float
    """Before the first step's end, beyond a usual step."""
    training_ratio: float
    """Training steps, warm-up included, without the validations and checkpoints in them."""
    validation_ratio: float
    checkpoint_ratio: float
    end_ratio: float
    """After the last step: everything that is neither validation nor checkpoint."""


VERDICT_FILE = "verdict.json"


def verdict_to_json(report: Report) -> str:
    """The text of the file; the figures are null if no step was seen."""
    step = report.step
    content = {
        "schema": "hotloop.verdict/1",
        "verdict": report.verdict,
        "steps_count": None if step is None else step.count,
        "step_mean_ns": None if step is None else step.mean_ns,
    }
    return json.dumps(content)
