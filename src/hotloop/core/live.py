"""LiveRun: the state of a run that is still going on. Made by pipeline/live.py, shown by pages and exporters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import InvariantError
from .phases import PHASES

RUNNING, ENDED, STALE, STALLED = "running", "ended", "stale", "stalled"
STATES = (RUNNING, ENDED, STALE, STALLED)
STALE_AFTER_S = 15.0
STALE_STEPS = 10


def is_stale(silent_s: float, step_ns: float | None) -> bool:
    """Whether no step ended for unusually long: at least STALE_AFTER_S, and as long as STALE_STEPS of them take.

    >>> is_stale(16.0, 1e9), is_stale(16.0, 2e9)
    (True, False)
    """
    return silent_s > max(STALE_AFTER_S, STALE_STEPS * (step_ns or 0.0) * 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDevice:
    """The newest sample of one accelerator (devices.jsonl). None if the device does not report it."""

    index: int
    name: str | None
    utilization_ratio: float | None
    """Share of NVML's sampling period in which a kernel ran."""
    memory_used_bytes: int | None
    """Of all programs together."""
    memory_total_bytes: int | None
    power_w: float | None
    temperature_c: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRank:
    """One training process. Times are int ns, and None means unknown.

    ``phase_ns`` and ``window_ns`` are totals over the newest ``window_count`` steps; they are measured as the report
    measures its steady steps, so over the same steps both give the same numbers.
    """

    rank: int | None
    """None if the training is not distributed."""
    local_rank: int | None
    host: str
    pid: int
    restart: int
    world_size: int
    steps_count: int
    """Steps since the process began, including those outside a report's steady steps."""
    window_count: int
    window_ns: int
    phase_ns: Mapping[str, int]
    """By PHASES."""
    samples_per_s: float | None
    tokens_per_s: float | None
    rss_bytes: int | None
    device_allocated_bytes: int | None
    device_reserved_bytes: int | None
    device_total_bytes: int | None
    utilization_ratio: float | None
    """Of this rank's accelerator."""
    age_s: float | None
    """Since the end of the newest row; None if the clock of its machine is unknown."""
    is_closed: bool
    """Whether the process ended its recording itself."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest value of each metric that the script recorded, such as its loss."""

    def __post_init__(self) -> None:
        if tuple(self.phase_ns) != PHASES or sum(self.phase_ns.values()) != self.window_ns:
            raise InvariantError(f"the phases {dict(self.phase_ns)} do not sum to the {self.window_ns} ns of the steps")

    @property
    def step_mean_ns(self) -> int | None:
        return round(self.window_ns / self.window_count) if self.window_count else None

    @property
    def steps_per_s(self) -> float | None:
        return self.window_count * 1e9 / self.window_ns if self.window_ns else None

    @property
    def memory_bytes(self) -> int | None:
        """Allocated on the accelerator if one is used, else the process's resident memory."""
        return self.device_allocated_bytes if self.device_allocated_bytes else self.rss_bytes

    def share_ratio(self, phase: str) -> float | None:
        """Share of the window's time that ``phase`` took, 0..1."""
        return self.phase_ns[phase] / self.window_ns if self.window_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """A run folder at one moment."""

    name: str
    command: tuple[str, ...]
    """With secrets replaced; empty if run.json cannot be read."""
    started_wall_s: float | None
    """Seconds since 1970."""
    state: str
    """``running``; ``ended`` (the command, or every process, ended in order); ``stale``: neither, and no new row;
    ``stalled``: `hotloop run` looked at its ranks, and they are hung."""
    exit_code: int | None
    """Of the command; None while it runs, if a signal ended it, or if nobody recorded it."""
    age_s: float | None
    """Since the newest row of any rank; None before the first."""
    ranks: tuple[LiveRank, ...]
    """Processes with at least one row, by rank; for a restarted rank, the newest process."""
    devices: tuple[LiveDevice, ...]
    """Of the machine on which ``hotloop run`` was started."""
    steps_total: int | None
    """Total steps of the training, if somebody stated them."""
    notes: tuple[str, ...]
    """One line for each file that could not be read."""

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise InvariantError(f"a run cannot be {self.state!r}: {', '.join(STATES)}")

    @property
    def lead(self) -> LiveRank | None:
        """The furthest rank (the first if several are equal); None before the first row."""
        return max(self.ranks, key=lambda rank: rank.steps_count, default=None)

    @property
    def progress_ratio(self) -> float | None:
        if self.steps_total is None or self.lead is None:
            return None
        return min(1.0, self.lead.steps_count / self.steps_total)

    @property
    def eta_s(self) -> float | None:
        """Seconds until ``steps_total`` at the recent pace; None unless both are known."""
        lead = self.lead
        if self.steps_total is None or lead is None or lead.steps_per_s is None:
            return None
        return max(0, self.steps_total - lead.steps_count) / lead.steps_per_s
