"""Steps whose phases were marked -> what a summary of them says: statistics of every phase, in bounded memory."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from dataclasses import dataclass, field

from .monitor_summary import MetricSummary, MonitoredMemory, Path, PhaseSummary, Stats

KEPT = 4096
"""Up to this many values the quantiles are exact; beyond, they come from a uniform sample of this size."""
_RANDOM = random.Random(0)  # our own: the training's draws are not touched


@dataclass(slots=True)
class PhaseTotals:
    """The time of one path's phase within one step, in ns."""

    calls: int = 0
    total_ns: int = 0
    own_ns: int = 0
    device_ns: int = 0
    """Complete once the record waits for no pair; counts if ``device_known``."""
    device_known: bool = True


@dataclass(slots=True, eq=False)
class StepRecord:
    """One step, or the phases since the last one. Phases between two steps count in the step that follows."""

    phases: defaultdict[Path, PhaseTotals] = field(default_factory=lambda: defaultdict(PhaseTotals))
    waiting: int = 0
    """Device pairs that have not completed."""
    counted_in: tuple[StepTotals, ...] = ()
    """Receives the device times once all are there."""
    memory: MonitoredMemory = field(default_factory=MonitoredMemory)

    def add_device_ns(self, path: Path, device_ns: int, *, between: bool) -> None:
        """A pair has completed; ``between``: of a phase between two steps."""
        self.phases[path].device_ns += device_ns
        if between:
            self.phases[()].device_ns += device_ns
        self.waiting -= 1
        self.complete()

    def complete(self) -> None:
        """Count the device times if no more will come."""
        if not self.waiting:
            for totals in self.counted_in:
                totals.add_device(self)


class Series:
    """Values arriving one by one, in bounded memory."""

    __slots__ = ("_kept", "_total_squared", "count", "max", "min", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total: float = 0
        self.min, self.max = math.inf, -math.inf
        self._total_squared: float = 0
        self._kept: list[float] = []

    def add(self, value: float) -> None:
        self.min, self.max = min(self.min, value), max(self.max, value)
        self.total += value
        self._total_squared += value * value
        self.count += 1
        if len(self._kept) < KEPT:
            self._kept.append(value)
            return
        place = _RANDOM.randrange(self.count)
        if place < KEPT:
            self._kept[place] = value

    def stats(self, zeros_count: int = 0) -> Stats | None:
        """Statistics of the values plus ``zeros_count`` zeros, which needs values >= 0; None without any
        value. Int values give exact sums."""
        if not self.count:
            return None
        count = self.count + zeros_count
        variance = max(0.0, (self._total_squared * count - self.total**2) / count**2)
        ordered = sorted(self._kept)
        zeros = round(zeros_count * len(ordered) / self.count)
        p50, p95, p99 = (quantile(ordered, at, zeros) for at in (0.5, 0.95, 0.99))
        return Stats(
            count=count,
            total=self.total,
            mean=self.total / count,
            std=math.sqrt(variance),
            min=0 if zeros_count else self.min,
            max=self.max,
            p50=p50,
            p95=p95,
            p99=p99,
        )


def quantile(ordered: list[float], at: float, zeros_count: int = 0) -> float:
    """Quantile of ``zeros_count`` zeros followed by sorted values, linear between adjacent values.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5), quantile([4.0], 0.5, 2)
    (2.5, 0.0)
    """

    def value(place: int) -> float:
        return ordered[place - zeros_count] if place >= zeros_count else 0.0

    last = len(ordered) + zeros_count - 1
    place = at * last
    low = math.floor(place)
    return value(low) + (value(min(low + 1, last)) - value(low)) * (place - low)


@dataclass(slots=True)
class _PhaseSum:
    times: Series = field(default_factory=Series)
    calls: int = 0
    own_ns: int = 0
    device_ns: int | None = None
    unknown_count: int = 0
    """Steps in which the device's time of the phase is not known."""


@dataclass(slots=True)
class _MetricSum:
    values: Series = field(default_factory=Series)
    last: float | None = None
    nonfinite_count: int = 0
    unknown_count: int = 0


class StepTotals:
    """Steps and metrics added one by one. The host's times are complete at once, the device's when they arrive."""

    def __init__(self) -> None:
        self.steps_count = self.warmup_count = 0
        self._phases: defaultdict[Path, _PhaseSum] = defaultdict(_PhaseSum)
        self._metrics: defaultdict[str, _MetricSum] = defaultdict(_MetricSum)
        self._device_records = 0

    def add(self, record: StepRecord) -> None:
        self.steps_count += 1
        for path, totals in record.phases.items():
            phase = self._phases[path]
            phase.times.add(totals.total_ns)
            phase.own_ns += totals.own_ns
            phase.calls += totals.calls

    def add_device(self, record: StepRecord) -> None:
        """The device times of a record are as complete as they will ever be."""
        self._device_records += 1
        for path, totals in record.phases.items():
            phase = self._phases[path]
            if totals.device_known:
                phase.device_ns = (phase.device_ns or 0) + totals.device_ns
            else:
                phase.unknown_count += 1

    def add_metric(self, name: str, value: float | None) -> None:
        """Take a value; None when it could not be read without waiting for the device."""
        metric = self._metrics[name]
        if value is None:
            metric.unknown_count += 1
        elif math.isfinite(value):
            metric.values.add(value)
            metric.last = value
        else:
            metric.nonfinite_count += 1
            metric.last = None

    def step(self) -> PhaseSummary | None:
        """The step itself; None when there is none."""
        return self._summarize(()) if self.steps_count else None

    def phases(self, parent: Path = ()) -> tuple[PhaseSummary, ...]:
        """Every phase inside ``parent``, each followed by those inside it, in the order in which they were first
        seen."""
        found: list[PhaseSummary] = []
        for path in self._phases:
            if path and path[:-1] == parent:
                found += [self._summarize(path), *self.phases(path)]
        return tuple(found)

    def metrics(self) -> tuple[MetricSummary, ...]:
        return tuple(
            MetricSummary(
                name=name,
                values=metric.values.stats(),
                last=metric.last,
                nonfinite_count=metric.nonfinite_count,
                unknown_count=metric.unknown_count,
            )
            for name, metric in self._metrics.items()
        )

    def _summarize(self, path: Path) -> PhaseSummary:
        phase = self._phases[path]
        stats = phase.times.stats(self.steps_count - phase.times.count)
        if stats is None:
            raise AssertionError(f"phase {path} without a step")
        device_steps = 0 if phase.device_ns is None else self._device_records - phase.unknown_count
        whole_ns = self._phases[()].times.total or 1
        return PhaseSummary(
            path=path,
            calls_count=phase.calls,
            time_ns=stats,
            own_ns=phase.own_ns / self.steps_count,
            share_ratio=phase.times.total / whole_ns,
            own_share_ratio=phase.own_ns / whole_ns,
            device_mean_ns=phase.device_ns / device_steps if phase.device_ns is not None else None,
            device_steps_count=device_steps,
        )
