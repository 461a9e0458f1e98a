"""Steps that were marked by hand -> MonitorSummary: a frozen value, as a dict and as a plain table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Path = tuple[str, ...]
"""Names of nested phases, outermost first; the empty path is the step itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Statistics of ``count`` values, in the unit of the values. ``std`` is that of the population."""

    count: int
    total: float
    mean: float
    std: float
    min: float
    max: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSummary:
    """A phase over the counted steps; times in ns per step (a step without it counts as 0).

    ``path`` names the phases around it and itself; the step has the empty path. ``own_ns`` is the mean time that no
    nested phase has. ``share_ratio`` and ``own_share_ratio`` are fractions of the step, 0..1. ``device_mean_ns`` is
    the mean time on the device's stream over ``device_steps_count`` steps; None when no step has it.
    """

    path: Path
    calls_count: int
    time_ns: Stats
    own_ns: float
    share_ratio: float
    own_share_ratio: float
    device_mean_ns: float | None
    device_steps_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPhase:
    """A phase on a thread other than the steps'; times in ns per call. It overlaps with steps, so it has no share."""

    path: Path
    time_ns: Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """Statistics of the finite values; ``last`` is None when the last one was not finite."""

    name: str
    values: Stats | None
    last: float | None
    nonfinite_count: int
    unknown_count: int
    """Values that could not be read without waiting for the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredMemory:
    """Last and highest readings in bytes; None where they cannot be read. Device figures are the allocator's own."""

    rss_bytes: int | None = None
    peak_rss_bytes: int | None = None
    device_allocated_bytes: int | None = None
    device_reserved_bytes: int | None = None
    device_peak_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSummary:
    """``steps_count`` steps, of which the first ``warmup_count`` are left out; ``step`` is None when none remains."""

    name: str | None
    rank: int | None
    epoch: int | None
    steps_count: int
    warmup_count: int
    dropped_count: int
    """Steps that an exception ended; they are in no figure."""
    step: PhaseSummary | None
    phases: tuple[PhaseSummary, ...]
    other_threads: tuple[ThreadPhase, ...]
    metrics: tuple[MetricSummary, ...]
    memory: MonitoredMemory
    device: str | None
    device_unknown_count: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for json.dumps."""
        return {"schema": "hotloop.monitor/1", **_plain(self)}

    def to_text(self) -> str:
        """A table for reading: phases indented below the phase around them, then memory and metrics."""
        return "\n".join(_lines(self)) + "\n"

    def __str__(self) -> str:
        return self.to_text()


def _plain(value: Any) -> Any:
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is not None:
        return {name: _plain(getattr(value, name)) for name in fields}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return getattr(value, "value", value)


_TIMES = ("mean", "std", "min", "p50", "p95", "p99", "max")


def _lines(summary: MonitorSummary) -> list[str]:
    what = summary.name or "training"
    epoch = "" if summary.epoch is None else f", epoch {summary.epoch}"
    rank = "" if summary.rank is None else f", rank {summary.rank}"
    step = summary.step
    if step is None:
        return [
            f"{what}{epoch}{rank}: {_count(summary.steps_count, 'step')}, all in the warm-up; nothing to summarize yet"
        ]
    left_out = f", after {_count(summary.warmup_count, 'step')} of warm-up" if summary.warmup_count else ""
    lines = [f"{what}{epoch}{rank}: {_count(step.time_ns.count, 'step')}{left_out}; times in ms per step"]
    with_device = summary.device is not None
    names = ["phase", "share", *_TIMES, *(["device"] if with_device else []), "calls"]
    rows = [names, _row("step", step, with_device)]
    rows += [_row("  " * len(phase.path) + phase.path[-1], phase, with_device) for phase in summary.phases]
    if summary.phases:
        rows.append(["  (unmarked)", f"{step.own_share_ratio:.1%}", _ms(step.own_ns), *[""] * (len(names) - 3)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines + _extras(summary)


def _row(label: str, phase: PhaseSummary, with_device: bool) -> list[str]:
    times = [_ms(getattr(phase.time_ns, name)) for name in _TIMES]
    device = ["?" if phase.device_mean_ns is None else _ms(phase.device_mean_ns)] if with_device else []
    return [label, f"{phase.share_ratio:.1%}", *times, *device, str(phase.calls_count)]


def _extras(summary: MonitorSummary) -> list[str]:
    lines = []
    for phase in summary.other_threads:
        stats = phase.time_ns
        lines.append(f"on another thread: {' > '.join(phase.path)} {stats.count} calls, {_ms(stats.mean)} ms each")
    lines += [_metric_line(metric) for metric in summary.metrics]
    memory = summary.memory
    parts = [
        ("resident", memory.rss_bytes),
        ("peak", memory.peak_rss_bytes),
        ("device allocated", memory.device_allocated_bytes),
        ("reserved", memory.device_reserved_bytes),
        ("peak", memory.device_peak_bytes),
    ]
    known = [f"{name} {value / 2**20:,.0f} MiB" for name, value in parts if value is not None]
    if known:
        lines.append("memory: " + ", ".join(known))
    if summary.device_unknown_count:
        lines.append(f"device times unknown for {_count(summary.device_unknown_count, 'phase')}")
    if summary.dropped_count:
        lines.append(f"{_count(summary.dropped_count, 'step')} ended by an exception, not counted")
    return lines


def _metric_line(metric: MetricSummary) -> str:
    last = "not finite" if metric.last is None else f"{metric.last:.6g}"
    line = f"{metric.name}: last {last}"
    if metric.values is not None:
        values = metric.values
        line += f", mean {values.mean:.6g}, {values.min:.6g} to {values.max:.6g}"
    for count, what in ((metric.nonfinite_count, "not finite"), (metric.unknown_count, "unknown")):
        line += f", {count} {what}" if count else ""
    return line


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _ms(time_ns: float) -> str:
    time_ms = time_ns * 1e-6
    return f"{time_ms:.1f}" if time_ms >= 100 else f"{time_ms:.3f}"
