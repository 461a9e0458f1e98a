"""Facts of a recording (untrusted JSON objects) -> the typed settings and totals of core.analysis.

A missing key, or one of a type other than expected, is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Protocol, get_type_hints

from hotloop.core.analysis import CompileFacts, DdpFacts, LoaderFacts, OptimizerFacts
from hotloop.core.applied import AppliedTechnique
from hotloop.core.findings import Where
from hotloop.core.report import Health, Overhead

from .segments import IntColumn

Fact = Mapping[str, Any]

MAX_TEXT_LENGTH = 4096
SHORTEST_IDLE_NS = 1_000_000_000
"""The kernel counts idle time in hundredths of a second: over a shorter time, it says little."""

MAX_ITEMS = 4096


class Recording(Protocol):
    """What the reader of a recording offers about one process. ``rows`` is int64, one row of STEP_FIELDS per
    segment."""

    @property
    def process(self) -> Mapping[str, Any]: ...

    @property
    def rows(self) -> IntColumn: ...

    @property
    def facts(self) -> Sequence[Mapping[str, Any]]: ...

    @property
    def lost_rows(self) -> int: ...

    @property
    def closed(self) -> bool: ...


def of_kind(facts: Iterable[Fact], kind: str) -> tuple[Fact, ...]:
    """The facts of one kind, in the order in which they were written."""
    return tuple(f for f in facts if isinstance(f, Mapping) and f.get("kind") == kind)


def last_of_kind(facts: Iterable[Fact], kind: str) -> Fact:
    """The newest fact of one kind; an empty one if there is none."""
    found = of_kind(facts, kind)
    return found[-1] if found else {}


def last_by(facts: Iterable[Fact], kind: str, key: str) -> dict[int, Fact]:
    """The newest fact of one kind for every integer value of ``key``, in order of first appearance."""
    found: dict[int, Fact] = {}
    for fact in of_kind(facts, kind):
        number = read_int(fact, key)
        if number is not None:
            found[number] = fact
    return found


def read_int(fact: Fact, key: str) -> int | None:
    value = fact.get(key)
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else None
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 63:
        return int(value)
    return None


def read_count(fact: Fact, key: str) -> int | None:
    """A number that cannot be negative."""
    value = read_int(fact, key)
    return value if value is not None and value >= 0 else None


def read_float(fact: Fact, key: str) -> float | None:
    value = fact.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def read_time(fact: Fact, key: str) -> float | None:
    """A duration or a moment, never negative, in the unit that the key names."""
    value = read_float(fact, key)
    return value if value is not None and value >= 0 else None


def read_bool(fact: Fact, key: str) -> bool | None:
    value = fact.get(key)
    return value if isinstance(value, bool) else None


def read_text(fact: Fact, key: str) -> str | None:
    value = fact.get(key)
    return value[:MAX_TEXT_LENGTH] if isinstance(value, str) else None


def read_where(value: Any) -> Where | None:
    """[file, line, function] as a Where, else None."""
    if not isinstance(value, (list, tuple)) or [type(part) for part in value] != [str, int, str]:
        return None
    file, line, function = value
    return Where(file=file[:MAX_TEXT_LENGTH], line=max(1, line), function=function[:MAX_TEXT_LENGTH])


def read_items(fact: Fact, key: str) -> Sequence[Any]:
    value = fact.get(key)
    return value[:MAX_ITEMS] if isinstance(value, (list, tuple)) else ()


def read_map(fact: Fact, key: str) -> Mapping[str, Any]:
    value = fact.get(key)
    return value if isinstance(value, Mapping) else {}


def read_fields(kind: type[Any], fact: Fact) -> dict[str, Any]:
    """The fields of a dataclass that may be unknown and are not floats, by name, each read from its key of the fact."""
    return {name: _READERS[hint](fact, name) for name, hint in _hints_of(kind).items() if hint in _READERS}


_hints_of: Callable[[Any], dict[str, Any]] = cache(get_type_hints)
_READERS: dict[Any, Callable[[Fact, str], Any]] = {
    int | None: read_count,
    bool | None: read_bool,
    str | None: read_text,
    Where | None: lambda fact, key: read_where(fact.get(key)),
}


def build_loaders(facts: Sequence[Fact]) -> tuple[LoaderFacts, ...]:
    """Every DataLoader with its settings and its totals as means per batch."""
    settings, totals = last_by(facts, "loader", "id"), last_by(facts, "loader_stats", "id")
    loaders = [_build_loader(i, settings.get(i, {}), totals.get(i, {})) for i in dict.fromkeys((*settings, *totals))]
    if any(loader.feeds_backward for loader in loaders):
        # By now, every loader that feeds backward has done so; a loader that gave batches and did not is of another
        # kind.
        loaders = [
            replace(loader, feeds_backward=False) if loader.feeds_backward is None and loader.batches else loader
            for loader in loaders
        ]
    return tuple(loaders)


def _build_loader(loader_id: int, settings: Fact, totals: Fact) -> LoaderFacts:
    of_batches = {
        "feeds_backward": read_bool(totals, "feeds_backward"),
        "batches": read_count(totals, "batches"),
        "iterators": read_count(totals, "iterators"),
        "fetch_ns": _mean_of(totals, "fetch_ns", "fetch_batches"),
        "fetch_cpu_ns": _mean_of(totals, "fetch_cpu_ns", "fetch_batches"),
        "collate_ns": _mean_of(totals, "collate_ns", "fetch_batches"),
        "iterator_start_ns": _mean_of(totals, "iterator_ns", "iterators"),
        "draws_random": read_bool(totals, "draws"),
        "first_wait_ns": _mean_of(totals, "first_wait_ns", "first_waits"),
    }
    return LoaderFacts(id=loader_id, **read_fields(LoaderFacts, settings) | of_batches)


def _mean_of(fact: Fact, total_key: str, count_key: str) -> float | None:
    total, count = read_time(fact, total_key), read_count(fact, count_key)
    return total / count if total is not None and count else None


def build_optimizers(facts: Sequence[Fact], steps_seen: Mapping[int, int]) -> tuple[OptimizerFacts, ...]:
    """Every optimizer; ``steps_seen`` are the steps that its rows show, by its index."""
    settings = last_by(facts, "optimizer", "index")
    found = []
    for index in sorted({*settings, *steps_seen}):
        fact = settings.get(index, {})
        given = read_fields(OptimizerFacts, fact)
        given["steps"] = max(given["steps"] or 0, steps_seen.get(index, 0)) or None
        found.append(OptimizerFacts(index=index, name=read_text(fact, "class") or "?", **given))
    return tuple(found)


def build_ddp(facts: Sequence[Fact], is_steady_row: Callable[[int], bool]) -> DdpFacts | None:
    """DistributedDataParallel's settings with the means of its sampled iterations; None if it was not used.

    Iterations count when their row is steady; all but the first two when no steady one was sampled.
    """
    samples = of_kind(facts, "ddp_stats")
    settings = last_of_kind(facts, "ddp")
    if not settings and not samples:
        return None
    steady = [f for f in samples if (row := read_count(f, "row")) is not None and is_steady_row(row)]
    used = steady or list(samples[2:])

    def mean(key: str) -> float | None:
        known = [v for f in used if (v := read_time(f, key)) is not None]
        return sum(known) / len(known) if known else None

    sizes = tuple(s for s in read_items(settings, "bucket_sizes") if isinstance(s, int) and not isinstance(s, bool))
    return DdpFacts(
        **read_fields(DdpFacts, settings),
        bucket_sizes=sizes or None,
        backward_compute_ns=mean("backward_compute_ns"),
        comm_ns=mean("comm_ns"),
        overlap_ns=mean("overlap_ns"),
        forward_ns=mean("forward_ns"),
        scan_ns=_mean_of(settings, "scan_ns_total", "scan_count"),
    )


def build_compile(
    facts: Sequence[Fact], steady_compile_ns: float, steps_before: Callable[[float], int]
) -> CompileFacts:
    """The work of torch.compile; ``steady_compile_ns`` is its mean time per steady step, and ``steps_before`` returns
    how many steps were over at a time of the recording's clock, in ns."""
    fact = last_of_kind(facts, "compile")
    # The first fact that has it: its age is by the wall clock, which is corrected while a long run goes on.
    noted_ns, limit = next(
        ((read_time(f, "t"), limit) for f in of_kind(facts, "compile") if len(limit := read_items(f, "limit")) == 3),
        (None, (None, None, None)),
    )
    reason, place, age_s = limit
    limit_ns = noted_ns - age_s * 1e9 if noted_ns is not None and isinstance(age_s, float) else math.nan
    used = read_bool(fact, "used") or steady_compile_ns > 0
    of_run = {
        "used": bool(used),
        "break_reasons": _reasons(fact, "break_reasons"),
        "recompile_reasons": _reasons(fact, "recompile_reasons"),
        "graph_calls_per_forward": _per_forward(fact, "graph_calls"),
        "graph_ns_per_forward": _per_forward(fact, "graph_calls_ns"),
        "graph_backward_calls_per_forward": _per_forward(fact, "graph_backward_calls"),
        "graph_backward_ns_per_forward": _per_forward(fact, "graph_backward_calls_ns"),
        "limit_reason": reason[:MAX_TEXT_LENGTH] if isinstance(reason, str) else None,
        "limit_where": read_where(place),
        "limit_step": steps_before(limit_ns) if math.isfinite(limit_ns) else None,
    }
    return CompileFacts(**read_fields(CompileFacts, fact) | of_run)


def _per_forward(fact: Fact, key: str) -> float | None:
    total, forwards = read_count(fact, key), read_count(fact, "graph_forwards")
    return None if total is None or not forwards else total / forwards


def _reasons(fact: Fact, key: str) -> tuple[tuple[str, Where | None], ...]:
    found = []
    for item in read_items(fact, key):
        if isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[0], str):
            found.append((item[0][:MAX_TEXT_LENGTH], read_where(item[1])))
    return tuple(found)


def find_main_model(facts: Sequence[Fact]) -> Fact:
    """The model fact with most parameters; an empty one if no model was seen."""
    return max(last_by(facts, "model", "id").values(), key=lambda f: read_count(f, "parameters") or 0, default={})


def _between(facts: Sequence[Fact], kind: str, start_ns: int, end_ns: int) -> list[Fact]:
    """The facts of a kind that were noted between two moments."""
    return [f for f in of_kind(facts, kind) if (t := read_time(f, "t")) is not None and start_ns <= t <= end_ns]


def _rise_per_ns(first: tuple[float | None, float | None], last: tuple[float | None, float | None]) -> float | None:
    """How fast a counter rose between two readings (time in ns, value); None if that is unknown."""
    (begin_ns, before), (finish_ns, after) = first, last
    if begin_ns is None or finish_ns is None or before is None or after is None:
        return None
    return (after - before) / (finish_ns - begin_ns) if finish_ns > begin_ns and after >= before else None


def read_network(facts: Sequence[Fact], start_ns: int, end_ns: int) -> tuple[dict[str, float], dict[str, float | None]]:
    """Bytes per second of every interface in its busier direction, and its nominal speed, between two moments.

    A link carries both directions at once, so their sum would overstate how full it is.
    """
    rates: dict[str, float] = {}
    speeds: dict[str, float | None] = {}
    inside = _between(facts, "network", start_ns, end_ns)
    for name in read_map(inside[-1], "interfaces") if inside else ():
        before, after = (read_map(read_map(fact, "interfaces"), name) for fact in (inside[0], inside[-1]))
        times = [read_time(fact, "t") for fact in (inside[0], inside[-1])]
        rises = [
            _rise_per_ns((times[0], read_count(before, key)), (times[1], read_count(after, key)))
            for key in ("rx_bytes", "tx_bytes")
        ]
        if any(rise is not None for rise in rises):
            rates[name] = max(rise for rise in rises if rise is not None) * 1e9
            speeds[name] = read_float(after, "speed_bytes_per_s")
    return rates, speeds


def read_run_delay_ratio(facts: Sequence[Fact], start_ns: int, end_ns: int) -> float | None:
    """Share of the time between two moments in which the training thread was ready but had no core, 0..1."""
    inside = _between(facts, "network", start_ns, end_ns)
    counters = [
        (read_time(f, "t"), delay_ns) for f in inside if (delay_ns := read_count(f, "run_delay_ns")) is not None
    ]
    rise = _rise_per_ns(counters[0], counters[-1]) if counters else None
    return None if rise is None else min(1.0, rise)


def read_idle_cores(facts: Sequence[Fact], start_ns: int, end_ns: int) -> tuple[float, int] | None:
    """The average number of idle cores between two moments, of those that a process may use, and their total number."""
    readings = []
    for fact in _between(facts, "memory", start_ns, end_ns):
        t, idle = read_time(fact, "t"), read_items(fact, "idle")
        if t is not None and len(idle) == 2 and all(isinstance(v, int) for v in idle):
            readings.append((t, int(idle[0]), int(idle[1])))
    if not readings or readings[-1][0] - readings[0][0] < SHORTEST_IDLE_NS:
        return None
    (begin_ns, before_ns, cores), (finish_ns, after_ns, cores_then) = readings[0], readings[-1]
    rise = _rise_per_ns((begin_ns, before_ns), (finish_ns, after_ns))
    return None if rise is None or cores != cores_then or cores < 1 else (min(float(cores), rise), cores)


def read_overhead(facts: Sequence[Fact], trained_ns: int) -> Overhead | None:
    """The agent's own statement of its cost to this process; None if it made none.

    ``share_ratio`` is of the time since the agent began, which includes time outside of steps; if a recording does not
    contain that time, it is of ``trained_ns``.
    """
    fact = last_of_kind(facts, "overhead")
    if not fact:
        return None
    parts = {key: read_time(fact, key) for key in ("hooks_ns", "sampler_ns", "deep_window_ns")}
    hooks_ns, sampler_ns, deep_ns = (None if v is None else round(v) for v in parts.values())
    known = [v for v in (hooks_ns, sampler_ns, deep_ns) if v is not None]
    whole_ns = max(trained_ns, read_time(fact, "elapsed_ns") or 0)
    return Overhead(
        hooks_ns=hooks_ns,
        sampler_ns=sampler_ns,
        deep_window_ns=deep_ns,
        share_ratio=sum(known) / whole_ns if known and whole_ns > 0 else None,
        memory_bytes=read_count(fact, "memory_bytes"),
        method=read_text(fact, "method") or "",
    )


def read_health(facts: Sequence[Fact]) -> tuple[Health, ...]:
    """What the agent reported about itself, each message once."""
    found = []
    for fact in of_kind(facts, "health"):
        level, message = read_text(fact, "level"), read_text(fact, "message")
        if message:
            found.append(Health(level=level if level in ("info", "warning", "error") else "warning", message=message))
    return tuple(dict.fromkeys(found))


def read_applied(facts: Sequence[Fact]) -> tuple[AppliedTechnique, ...]:
    """The effects of a strategy's techniques in this process, in the order in which they occurred."""
    found = []
    for fact in of_kind(facts, "applied"):
        technique, status = read_text(fact, "technique"), read_text(fact, "status")
        if technique is None or status is None:
            continue
        found.append(
            AppliedTechnique(
                technique=technique,
                settings=dict(read_map(fact, "settings")),
                status=status,
                detail=read_text(fact, "detail") or "",
                **read_fields(AppliedTechnique, fact),
                values=dict(read_map(fact, "values")),
            )
        )
    return tuple(found)
