"""Memory of a process: peak, level and growth over its steps, and which processes ran out of it, or came close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hotloop.core.analysis import MemoryFailure
from hotloop.core.report import MemorySummary

from .facts import Fact, Recording, last_of_kind, of_kind, read_count, read_int, read_text, read_where
from .segments import BoolColumn, IntColumn, Steps
from .stats import Slope, fit_slope


def measure_memory(
    steps: Steps, base: BoolColumn, facts: Sequence[Fact], host_total_bytes: int | None
) -> tuple[MemorySummary, Slope | None]:
    """The memory of one process, and its growth in bytes per step over the steady entries ``base``."""
    samples = of_kind(facts, "memory")
    devices = [d for f in samples if isinstance(d := f.get("device"), Mapping)]
    if not (_largest(devices, "peak") or _largest(devices, "allocated")):
        devices = []  # an accelerator that was queried but never used
    allocated = steps.columns["device_allocated_bytes"]
    if devices or bool((allocated > 0).any()):
        reserved = steps.columns["device_reserved_bytes"]
        total_bytes = _largest(devices, "total")
        peak_bytes = _highest(_largest(devices, "peak"), _largest(devices, "allocated"), _column_peak(allocated))
        allocated_bytes = _last(devices, "allocated", allocated)
        reserved_bytes = _last(devices, "reserved", reserved)
        slope = _growth(steps, base, [(f, f.get("device")) for f in samples], "allocated", "device_allocated_bytes")
    else:
        total_bytes = host_total_bytes
        rss = steps.columns["rss_bytes"]
        peak_bytes = _highest(_largest(samples, "rss_bytes"), _largest(samples, "peak_rss_bytes"), _column_peak(rss))
        allocated_bytes = reserved_bytes = None
        slope = _growth(steps, base, [(f, f) for f in samples], "rss_bytes", "rss_bytes")
    summary = MemorySummary(
        peak_bytes=peak_bytes,
        allocated_bytes=allocated_bytes,
        reserved_bytes=reserved_bytes,
        total_bytes=total_bytes,
        peak_ratio=peak_bytes / total_bytes if peak_bytes is not None and total_bytes else None,
        growth_bytes_per_step=None if slope is None else slope.per_x,
    )
    return summary, slope


def _growth(
    steps: Steps, base: BoolColumn, samples: Sequence[tuple[Fact, Any]], key: str, column_name: str
) -> Slope | None:
    """Slope over the steady steps: of the levels in the rows, else of the memory facts.

    The level in a block of rows belongs to no particular moment, so blocks are not used as points.
    """
    number = np.cumsum(steps.weight) - steps.weight
    level = steps.columns[column_name]
    known = base & (level > 0) & ~steps.is_block
    x, y = number[known], level[known]
    if len(x) >= 8:
        return fit_slope(x.astype(np.float64), y.astype(np.float64))
    points: list[tuple[int, int]] = []
    first, last = (int(steps.first_row[base].min()), int(steps.last_row[base].max())) if base.any() else (0, -1)
    for fact, holder in samples:
        row = read_count(fact, "row")
        value = read_count(holder, key) if isinstance(holder, Mapping) else None
        if row is None or value is None or not first <= row <= last:
            continue
        entry = min(int(np.searchsorted(steps.last_row, row)), len(number) - 1)
        points.append((int(number[entry]), value))
    return fit_slope(
        np.array([x for x, _ in points], dtype=np.float64), np.array([y for _, y in points], dtype=np.float64)
    )


def _column_peak(column: IntColumn) -> int | None:
    peak = int(column.max(initial=0))
    return peak if peak > 0 else None


def _largest(facts: Sequence[Fact], key: str) -> int | None:
    return max((v for f in facts if (v := read_count(f, key))), default=None)


def _highest(*values: int | None) -> int | None:
    return max((v for v in values if v is not None), default=None)


def _last(facts: Sequence[Fact], key: str, column: IntColumn) -> int | None:
    for fact in reversed(facts):
        value = read_count(fact, key)
        if value is not None:
            return value
    known = column[column >= 0]
    return int(known[-1]) if len(known) else None


def find_memory_failures(recordings: Sequence[Recording]) -> tuple[MemoryFailure, ...]:
    """The processes of the newest attempt in which an allocation failed.

    If there are none, those that could not report how they ended: the kernel gives a process no time for that.
    """
    newest = max((read_count(r.process, "restart") or 0 for r in recordings), default=0)
    last = [r for r in recordings if (read_count(r.process, "restart") or 0) == newest]
    failed = [r for r in last if last_of_kind(r.facts, "out_of_memory")]
    silent = [r for r in last if not last_of_kind(r.facts, "end")]
    return tuple(_failure_of(r) for r in failed or silent)


def find_memory_near(recordings: Sequence[Recording], least_ratio: float) -> tuple[MemoryFailure, ...]:
    """The processes of the newest attempt whose peak is above ``least_ratio`` of their memory. Processes of one host
    share its memory: their peaks count together, for the one that used most."""
    newest = max((read_count(r.process, "restart") or 0 for r in recordings), default=0)
    last = [r for r in recordings if (read_count(r.process, "restart") or 0) == newest]
    found = []
    by_host: dict[str | None, list[MemoryFailure]] = {}
    for recording in last:
        on_device = any(read_count(one, "peak") for one in _readings(recording.facts, "cuda"))
        one = _held_by(recording, "cuda" if on_device else "cpu")
        if on_device:
            found.append(one)
        else:
            by_host.setdefault(read_text(recording.process, "host"), []).append(one)
    for several in by_host.values():
        most = max(several, key=lambda one: one.used_bytes or 0)
        found.append(replace(most, used_bytes=sum(one.used_bytes or 0 for one in several)))
    return tuple(
        one for one in found if one.used_bytes and one.total_bytes and one.used_bytes > least_ratio * one.total_bytes
    )


def _failure_of(recording: Recording) -> MemoryFailure:
    fact = last_of_kind(recording.facts, "out_of_memory")
    return _held_by(recording, read_text(fact, "device") or "cpu", fact)  # the kernel kills for the host's memory


def _held_by(recording: Recording, device: str, fact: Fact | None = None) -> MemoryFailure:
    """What a process held on a device; ``fact`` is what it reported about its end, empty if it could not report."""
    process, told = recording.process, fact or {}
    held = fact or _held_on(recording.facts, device)
    of_device = {
        key: max((v for f in _readings(recording.facts, device) if (v := read_count(f, key))), default=None)
        for key in ("peak", "total", "peak_rss_bytes")
    }
    on_host = device == "cpu"
    peak_bytes = read_count(told, "peak_bytes")
    return MemoryFailure(
        pid=read_int(process, "pid") or 0,
        rank=read_int(process, "rank"),
        world_size=max(1, read_count(process, "world_size") or 1),
        device=device,
        is_killed=fact is not None and not fact,
        where=read_where(told.get("where")),
        asked_bytes=read_count(told, "asked_bytes"),
        total_bytes=read_count(process, "memory_total_bytes")
        if on_host
        else read_count(told, "total_bytes") or of_device["total"],
        free_bytes=read_count(told, "free_bytes"),
        used_bytes=read_count(told, "used_bytes") or peak_bytes or of_device["peak_rss_bytes" if on_host else "peak"],
        unallocated_bytes=read_count(told, "unallocated_bytes"),
        parameter_bytes=read_count(held, "parameter_bytes"),
        gradient_bytes=read_count(held, "gradient_bytes"),
        optimizer_state_bytes=read_count(held, "optimizer_state_bytes"),
    )


def _held_on(facts: Sequence[Fact], device: str) -> Fact:
    held = last_of_kind(facts, "held")
    return held if read_text(held, "device") == device else {}


def _readings(facts: Sequence[Fact], device: str) -> list[Fact]:
    samples = of_kind(facts, "memory")
    return list(samples) if device == "cpu" else [d for f in samples if isinstance(d := f.get("device"), dict)]
