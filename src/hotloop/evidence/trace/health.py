"""Columns -> notes on what reading alone shows about a trace's quality, before any analysis."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hotloop.core.trace import DEVICE_WORK, Category, Trace, TraceNote


def judge_columns(trace: Trace) -> tuple[TraceNote, ...]:
    """Notes in a fixed order; nothing is noted that the trace shows to be in order."""
    return (*_judge_links(trace), *_judge_contents(trace))


def _note(level: str, code: str, message: str, count: int | None = None) -> TraceNote:
    return TraceNote(level=level, code=code, message=message, count=count)


def _judge_links(trace: Trace) -> Iterator[TraceNote]:
    work = np.flatnonzero(np.isin(trace.category, DEVICE_WORK))
    if not len(work):
        return
    calls = np.flatnonzero((trace.category == Category.RUNTIME) & (trace.correlation >= 0))
    if not len(calls):
        yield _note(
            "warning", "no-runtime-events", "No runtime calls were recorded, so launches cannot be judged.", len(work)
        )
        return
    order = np.argsort(trace.correlation[calls], kind="stable")
    ids = trace.correlation[calls][order]
    wanted = trace.correlation[work]
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    linked = (ids[at] == wanted) & (wanted >= 0)
    unlinked_count = int((~linked).sum())
    if unlinked_count:
        yield _note(
            "warning", "unlinked-kernels",
            f"{unlinked_count:,} of {len(work):,} device events have no launching call in the trace; they count as "
                "device work, but their origin is unknown.",
            unlinked_count,
        )  # fmt: skip
    launched_ns = trace.start_ns[calls][order][at]
    early_count = int((linked & (trace.start_ns[work] < launched_ns)).sum())
    if early_count:
        yield _note(
            "warning", "negative-launch-delay",
            f"{early_count:,} device events begin before the call that launched them: host and device clocks "
                "differ, so launch delays are too short.",
            early_count,
        )  # fmt: skip


def _judge_contents(trace: Trace) -> Iterator[TraceNote]:
    category = trace.category
    has_device = bool(np.isin(category, DEVICE_WORK).any())
    if len(trace) and not has_device:
        yield _note("info", "no-device-events", "The trace contains no GPU work: only host times can be analyzed.")
    if has_device and not trace.facts.has_sync:
        yield _note(
            "info", "no-sync-events",
            "No synchronization events: the critical path cannot show what the host waited for. Record with "
                "experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True).",
        )  # fmt: skip
    if bool((category == Category.CPU_OP).any()):
        if not trace.facts.has_shapes:
            yield _note("info", "no-shapes", "No input shapes: record with record_shapes=True to see FLOPs by shape.")
        if not trace.facts.has_stacks:
            yield _note("info", "no-stacks", "No Python stacks: record with with_stack=True to see lines of code.")
    if len(trace) and not any(name.startswith("ProfilerStep#") for name in trace.names):
        yield _note("info", "no-steps", "No ProfilerStep ranges: call profiler.step() in the loop to see single steps.")
    overhead = category == Category.OVERHEAD
    if overhead.any():
        total_ns = int(trace.duration_ns[overhead].sum())
        yield _note(
            "info", "profiler-overhead",
            f"The profiler itself took {total_ns / 1e6:,.3f} ms in {int(overhead.sum()):,} events.",
            int(overhead.sum()),
        )  # fmt: skip
