"""LiveRun -> points: the numbers that are exported, with their names in OpenTelemetry's form.

Every target takes its names from here: Prometheus as OpenTelemetry's rules translate them, files with '/' in them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from hotloop.core.live import STATES, LiveDevice, LiveRank, LiveRun
from hotloop.core.phases import PHASES

MOST_RANKS = 64
"""More ranks than this are not exported one by one: the first ones are."""

_UNIT_SUFFIXES = {"s": "seconds", "By": "bytes", "1": "ratio", "W": "watts", "Cel": "celsius"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One name. ``unit`` is UCUM's, as OpenTelemetry writes it; ``help`` is one line for people."""

    name: str
    unit: str
    help: str
    is_counter: bool = False

    @property
    def prometheus_name(self) -> str:
        """The name by OpenTelemetry's rules for Prometheus: dots and units become words joined by underscores.

        >>> Metric(name="hotloop.training.step.duration", unit="s", help="").prometheus_name
        'hotloop_training_step_duration_seconds'
        """
        unit = self.unit
        suffix = "per_second" if unit.endswith("/s") else _UNIT_SUFFIXES.get(unit, "")
        parts = [self.name.replace(".", "_"), suffix, "total" if self.is_counter else ""]
        return "_".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One number of one snapshot; always finite."""

    metric: Metric
    value: float | int
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run at one moment, as it is handed to every target."""

    run: LiveRun
    wall_s: float
    """Seconds since 1970."""
    points: tuple[Point, ...] = field(default=())


STATE = Metric(name="hotloop.run.state", unit="", help="1 for the current state of the run, 0 for the other states")
AGE = Metric(name="hotloop.run.row.age", unit="s", help="Time since the newest step was recorded")
PROGRESS = Metric(
    name="hotloop.training.progress", unit="1", help="Completed steps divided by the total number of steps"
)
ETA = Metric(name="hotloop.training.remaining", unit="s", help="Time until the last step at the recent rate")
PHASE_DURATION = Metric(
    name="hotloop.training.step.phase.duration", unit="s", help="Mean time of one phase per recent step"
)
PHASE_SHARE = Metric(
    name="hotloop.training.step.phase.share", unit="1", help="Share of one phase in the time of recent steps"
)
LOGGED = Metric(
    name="hotloop.training.metric", unit="", help="The newest value that the script recorded under this name"
)

_OF_RANK: tuple[tuple[Metric, Callable[[LiveRank], float | int | None]], ...] = (
    (
        Metric(name="hotloop.training.steps", unit="{step}", help="Steps since the process began", is_counter=True),
        lambda rank: rank.steps_count,
    ),
    (
        Metric(name="hotloop.training.step.duration", unit="s", help="Mean time of the recent steps"),
        lambda rank: None if rank.window_count == 0 else rank.window_ns / rank.window_count * 1e-9,
    ),
    (
        Metric(
            name="hotloop.training.samples", unit="{sample}/s", help="Training samples processed in the recent steps"
        ),
        lambda rank: rank.samples_per_s,
    ),
    (
        Metric(name="hotloop.training.tokens", unit="{token}/s", help="Training tokens processed in the recent steps"),
        lambda rank: rank.tokens_per_s,
    ),
    (
        Metric(name="hotloop.process.memory.resident", unit="By", help="Resident memory of the process"),
        lambda rank: rank.rss_bytes,
    ),
    (
        Metric(name="hotloop.device.memory.allocated", unit="By", help="Device memory that tensors use"),
        lambda rank: rank.device_allocated_bytes,
    ),
    (
        Metric(name="hotloop.device.memory.reserved", unit="By", help="Device memory that the allocator has reserved"),
        lambda rank: rank.device_reserved_bytes,
    ),
)
_OF_DEVICE: tuple[tuple[Metric, Callable[[LiveDevice], float | int | None]], ...] = (
    (
        Metric(name="hw.gpu.utilization", unit="1", help="Share of the sampling period in which a kernel ran"),
        lambda device: device.utilization_ratio,
    ),
    (
        Metric(name="hw.gpu.memory.usage", unit="By", help="GPU memory in use by all programs"),
        lambda device: device.memory_used_bytes,
    ),
    (
        Metric(name="hw.gpu.memory.limit", unit="By", help="Total memory of the GPU"),
        lambda device: device.memory_total_bytes,
    ),
    (Metric(name="hw.power", unit="W", help="Power that the GPU draws"), lambda device: device.power_w),
    (Metric(name="hw.temperature", unit="Cel", help="Temperature of the GPU"), lambda device: device.temperature_c),
)
METRICS: tuple[Metric, ...] = (
    STATE, AGE, PROGRESS, ETA, *(one for one, _ in _OF_RANK), PHASE_DURATION, PHASE_SHARE, LOGGED,
    *(one for one, _ in _OF_DEVICE),
)  # fmt: skip


def group_points(snapshot: Snapshot) -> list[tuple[Metric, list[Point]]]:
    """The points of each metric that has any, in the order of METRICS."""
    by_name: dict[str, list[Point]] = {}
    for point in snapshot.points:
        by_name.setdefault(point.metric.name, []).append(point)
    return [(metric, by_name[metric.name]) for metric in METRICS if metric.name in by_name]


def make_snapshot(run: LiveRun, wall_s: float) -> Snapshot:
    """The run with everything that is known of it as points; a number that is unknown or not finite is left out."""
    return Snapshot(run=run, wall_s=wall_s, points=tuple(_list_points(run)))


def _list_points(run: LiveRun) -> Iterator[Point]:
    for state in STATES:
        yield Point(metric=STATE, value=int(run.state == state), attributes={"state": state})
    for metric, value in ((AGE, run.age_s), (PROGRESS, run.progress_ratio), (ETA, run.eta_s)):
        if value is not None:
            yield Point(metric=metric, value=value, attributes={})
    for rank in run.ranks[:MOST_RANKS]:
        yield from _points_of_rank(rank)
    for device in run.devices:
        attributes = {"hw.id": str(device.index), "hw.type": "gpu", **({"hw.name": device.name} if device.name else {})}
        for metric, read in _OF_DEVICE:
            if (known := read(device)) is not None:
                yield Point(metric=metric, value=known, attributes=attributes)


def _points_of_rank(rank: LiveRank) -> Iterator[Point]:
    attributes = {"rank": "0" if rank.rank is None else str(rank.rank), "host": rank.host}
    for metric, read in _OF_RANK:
        value = read(rank)
        if value is not None:
            yield Point(metric=metric, value=value, attributes=attributes)
    for phase in PHASES if rank.window_count and rank.window_ns else ():
        named = {**attributes, "phase": phase}
        mean_s = rank.phase_ns[phase] / rank.window_count * 1e-9
        yield Point(metric=PHASE_DURATION, value=mean_s, attributes=named)
        yield Point(metric=PHASE_SHARE, value=rank.phase_ns[phase] / rank.window_ns, attributes=named)
    for name, value in rank.metrics.items():
        if math.isfinite(value):
            yield Point(metric=LOGGED, value=value, attributes={**attributes, "name": name})


def flatten_points(snapshot: Snapshot) -> dict[str, float | int]:
    """The points as one flat dict, for tools that log names with values: those of the rank that has gone farthest, and
    of the others the duration of a step. Names hold letters, digits and ``_ - . /`` only.

    'hotloop/step_duration_seconds', 'hotloop/step_phase_share_ratio/input_wait', 'hw/gpu_utilization_ratio/0'
    """
    lead = snapshot.run.lead
    lead_rank = None if lead is None else str(lead.rank or 0)
    flat: dict[str, float | int] = {}
    for point in snapshot.points:
        rank = point.attributes.get("rank")
        is_step_time = point.metric.name == "hotloop.training.step.duration"
        if rank not in (None, lead_rank):
            if is_step_time:
                flat[f"{_flat_name(point.metric)}/rank_{rank}"] = point.value
            continue
        detail = [point.attributes[key] for key in ("phase", "name", "state", "hw.id") if key in point.attributes]
        flat["/".join([_flat_name(point.metric), *(_UNUSUAL.sub("_", one)[:128] for one in detail)])] = point.value
    return flat


_UNUSUAL = re.compile(r"[^A-Za-z0-9_./-]")


def _flat_name(metric: Metric) -> str:
    for prefix, short in (("hotloop_training_", "hotloop/"), ("hotloop_", "hotloop/"), ("hw_", "hw/")):
        if metric.prometheus_name.startswith(prefix):
            return short + metric.prometheus_name.removeprefix(prefix)
    return metric.prometheus_name
