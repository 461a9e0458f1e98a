"""Recordings of a command that ended out of memory -> which processes did, and what held their memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
    """What a process held on a device; ``fact`` is what it said of its end, empty where it could not say."""
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
