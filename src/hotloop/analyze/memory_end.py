"""Recordings of a command that ended out of memory -> which processes did, and what held their memory."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.analysis import MemoryFailure

from .facts import Fact, last_of_kind, of_kind, read_count, read_int, read_text, read_where
from .process import Recording


def find_memory_failures(recordings: Sequence[Recording]) -> tuple[MemoryFailure, ...]:
    """The processes of the newest attempt of which an allocation failed.

    Without one, those that could not say how they ended: the kernel leaves a process no time for that.
    """
    newest = max((read_count(r.process, "restart") or 0 for r in recordings), default=0)
    last = [r for r in recordings if (read_count(r.process, "restart") or 0) == newest]
    failed = [r for r in last if last_of_kind(r.facts, "out_of_memory")]
    silent = [r for r in last if not last_of_kind(r.facts, "end")]
    return tuple(_failure_of(r) for r in failed or silent)


def _failure_of(recording: Recording) -> MemoryFailure:
    process, fact = recording.process, last_of_kind(recording.facts, "out_of_memory")
    device = read_text(fact, "device") or "cpu"  # the kernel kills for want of the host's memory
    held = fact or _held_on(recording.facts, device)
    of_device = {
        key: max((v for f in _readings(recording.facts, device) if (v := read_count(f, key))), default=None)
        for key in ("peak", "total", "peak_rss_bytes")
    }
    on_host = device == "cpu"
    peak_bytes = read_count(fact, "peak_bytes")
    return MemoryFailure(
        pid=read_int(process, "pid") or 0,
        rank=read_int(process, "rank"),
        world_size=max(1, read_count(process, "world_size") or 1),
        device=device,
        is_killed=not fact,
        where=read_where(fact.get("where")),
        asked_bytes=read_count(fact, "asked_bytes"),
        total_bytes=read_count(process, "memory_total_bytes")
        if on_host
        else read_count(fact, "total_bytes") or of_device["total"],
        free_bytes=read_count(fact, "free_bytes"),
        used_bytes=read_count(fact, "used_bytes") or peak_bytes or of_device["peak_rss_bytes" if on_host else "peak"],
        unallocated_bytes=read_count(fact, "unallocated_bytes"),
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
