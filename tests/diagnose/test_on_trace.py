"""Every rule that judges a profiler's files: a synthetic trace with its fault planted, and a healthy one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hotloop.core.findings import Finding, Severity, Skipped
from hotloop.core.trace import DeviceFacts, MemoryEvents
from hotloop.core.trace_analysis import RankWait, TraceAnalysis
from hotloop.judge.diagnose import RULES
from hotloop.pipeline.traces import ReduceOptions, reduce_rank, report_trace_analysis
from tests.analyze.timeline.plain_trace import US, PlainTrace, Row, call, copy, kernel, mark, op

from .build_analysis import fix_of, saving_of

STEP_US = 1000
GIB = 1 << 30
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
Plant = Callable[[int, int], list[Row]]


def gemm(at: int, step: int) -> list[Row]:
    """One kernel that keeps the device busy from the start of the step to its end."""
    launch = call("cudaLaunchKernel", at + 2, 5, 100 * step + 1)
    return [op("aten::mm", at + 1, 7), launch, kernel("gemm", at + 10, 988, 100 * step + 1)]


def waits_for_data(at: int, step: int) -> list[Row]:
    return [
        mark(LOADER, at, 400),
        call("cudaLaunchKernel", at + 400, 5, 100 * step + 1),
        kernel("gemm", at + 410, 585, 100 * step + 1),
    ]


def loads_quickly(at: int, step: int) -> list[Row]:
    return [mark(LOADER, at, 1), *gemm(at, step)]


def syncs(at: int, step: int) -> list[Row]:
    """The host waits for a first kernel, then works 300 us before it launches the next."""
    return [
        call("cudaLaunchKernel", at + 2, 5, 100 * step + 1),
        kernel("first", at + 10, 290, 100 * step + 1),
        call("cudaStreamSynchronize", at + 10, 292),
        op("aten::item", at + 310, 280),
        call("cudaLaunchKernel", at + 600, 5, 100 * step + 2),
        kernel("gemm", at + 610, 385, 100 * step + 2),
    ]


def launches_late(at: int, step: int) -> list[Row]:
    """A kernel of 4 us every 50: each ends long before the next is launched."""
    rows = []
    for i in range(20):
        rows += [op("aten::add", at + 50 * i, 48), call("cudaLaunchKernel", at + 50 * i + 40, 6, 100 * step + i + 1)]
        rows += [kernel("add", at + 50 * i + 45, 4, 100 * step + i + 1)]
    return rows


def communicates_alone(at: int, step: int) -> list[Row]:
    return [
        call("cudaLaunchKernel", at + 2, 5, 100 * step + 1),
        kernel("gemm", at + 10, 590, 100 * step + 1),
        call("cudaLaunchKernel", at + 12, 5, 100 * step + 2),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 600, 395, 100 * step + 2, stream="9"),
    ]


def copies_pageable(at: int, step: int) -> list[Row]:
    return [
        call("cudaMemcpyAsync", at + 2, 400, 100 * step + 1),
        copy("Memcpy HtoD (Pageable -> Device)", at + 10, 390, 100 * step + 1),
        call("cudaLaunchKernel", at + 405, 5, 100 * step + 2),
        kernel("gemm", at + 412, 583, 100 * step + 2),
    ]


def copies_pinned(at: int, step: int) -> list[Row]:
    return [*gemm(at, step), copy("Memcpy HtoD (Pinned -> Device)", at + 50, 390, 100 * step + 1, stream="9")]


def allocates(at: int, step: int) -> list[Row]:
    """The next kernel is launched only after 400 us in cudaMalloc."""
    return [
        call("cudaLaunchKernel", at + 2, 5, 100 * step + 1),
        kernel("first", at + 10, 290, 100 * step + 1),
        call("cudaMalloc", at + 305, 380),
        call("cudaLaunchKernel", at + 690, 5, 100 * step + 2),
        kernel("gemm", at + 700, 295, 100 * step + 2),
    ]


def allocations(steps: int, before_bytes: int, kept_bytes: int, peak_bytes: int, device_type: int = 1) -> MemoryEvents:
    """Per step: up to the peak, back, and ``kept_bytes`` that stay."""
    rows, level = [], before_bytes
    for step in range(steps):
        at = step * STEP_US
        for when, change in ((100, peak_bytes - before_bytes), (800, before_bytes - peak_bytes), (810, kept_bytes)):
            if change:
                level += change
                rows.append((at + when, 1000 * step + when, change, level, max(level, peak_bytes)))
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    # What is freed was allocated under the same address.
    table[table[:, 2] < 0, 1] -= 700
    return MemoryEvents(
        time_ns=table[:, 0] * US,
        address=table[:, 1],
        bytes=table[:, 2],
        allocated_bytes=table[:, 3],
        reserved_bytes=table[:, 4],
        device_type=np.full(len(table), device_type, dtype=np.int32),
        device_index=np.zeros(len(table), dtype=np.int32),
    )


def analyse(
    plant: Plant, steps: int = 4, memory: MemoryEvents | None = None, total: int | None = None
) -> TraceAnalysis:
    rows = []
    for step in range(steps):
        rows += [mark(f"ProfilerStep#{step}", step * STEP_US, STEP_US), *plant(step * STEP_US, step)]
    trace = PlainTrace(rows, devices=(DeviceFacts(index=0, total_bytes=total),), memory=memory)
    return TraceAnalysis(ranks=(reduce_rank(trace, ReduceOptions()).rank,))


def judge(rule_id: str, analysis: TraceAnalysis) -> Finding | Skipped | None:
    judged = RULES[rule_id].judge_trace
    assert judged is not None
    found = judged(analysis)
    assert found is None or isinstance(found, (Finding, Skipped))
    return found


def find_one(rule_id: str, analysis: TraceAnalysis) -> Finding:
    found = judge(rule_id, analysis)
    assert isinstance(found, Finding), found
    return found


PLANTED: dict[str, tuple[Plant, float]] = {
    "input-bound": (waits_for_data, 0.4),
    "host-sync": (syncs, 0.31),
    "launch-bound": (launches_late, 0.82),
    "exposed-communication": (communicates_alone, 0.395),
    "pageable-transfer": (copies_pageable, 0.39),
    "allocator-thrash": (allocates, 0.38),
}
"""The fault that a rule must find, and the share of the time that it costs."""
HEALTHY: dict[str, Plant] = dict.fromkeys(PLANTED, gemm) | {
    "pageable-transfer": copies_pinned,
    "input-bound": loads_quickly,
}
"""Rules whose evidence is no kernel of one rank."""


@pytest.mark.parametrize("rule_id", sorted(PLANTED))
def test_a_planted_fault_is_found_with_its_cost(rule_id: str) -> None:
    plant, share = PLANTED[rule_id]
    found = find_one(rule_id, analyse(plant))
    assert found.cost_ratio == pytest.approx(share, abs=0.03)
    assert (
        0 <= saving_of(found).low_ratio <= saving_of(found).mid_ratio <= saving_of(found).high_ratio <= found.cost_ratio
    )


@pytest.mark.parametrize("rule_id", sorted(HEALTHY))
def test_a_healthy_trace_has_no_such_fault(rule_id: str) -> None:
    assert judge(rule_id, analyse(HEALTHY[rule_id])) is None


def test_what_a_rule_asks_for_is_forecast() -> None:
    for one in RULES.values():
        if one.asks:
            forecasts = analyse(PLANTED[one.id][0]).lead.forecasts
            assert set(one.asks) <= set(forecasts), one.id


def test_a_host_without_a_device_is_skipped() -> None:
    analysis = analyse(lambda at, step: [op("aten::mm", at + 10, 900)])
    for rule_id in sorted(set(PLANTED) - {"input-bound"}):
        assert isinstance(judge(rule_id, analysis), Skipped), rule_id


def test_the_rank_that_others_wait_for() -> None:
    lead = analyse(gemm).lead
    ranks = tuple(replace(lead, facts=replace(lead.facts, rank=i)) for i in range(3))

    def waits(*ns: int) -> TraceAnalysis:
        told = tuple(RankWait(rank=i, wait_ns=one, last_arrivals_count=0) for i, one in enumerate(ns))
        return TraceAnalysis(ranks=ranks, waits=told, matched_count=8, transfer_ns=10, span_ns=1000)

    found = find_one("straggler", waits(300, 10, 310))
    assert found.ranks == (1,)
    assert judge("straggler", waits(100, 95, 105)) is None
    # Two of sixteen are late together; four of sixteen would be a kind of rank.
    found = find_one("straggler", waits(*[300] * 5, 12, *[310] * 5, 10, *[305] * 4))
    assert found.ranks == (5, 11)
    assert judge("straggler", waits(*[300] * 12, 10, 11, 12, 13)) is None
    assert isinstance(judge("straggler", TraceAnalysis(ranks=ranks[:1])), Skipped)


def test_memory_that_grows() -> None:
    """64 MiB a step stay; the device of 8 GiB would be full in 110 more steps."""
    memory = allocations(12, GIB, 64 << 20, 2 * GIB)
    found = find_one("memory-growth", analyse(gemm, 12, memory, 8 * GIB))
    assert found.evidence["growth_bytes_per_step"] == 64 << 20
    assert found.evidence["steps_left"] == (8 * GIB - GIB - 12 * (64 << 20)) // (64 << 20)
    assert found.severity is Severity.HIGH
    # Without totals the slope is known, but not what is left.
    relative = replace(memory, allocated_bytes=np.full_like(memory.allocated_bytes, -1))
    found = find_one("memory-growth", analyse(gemm, 12, relative, 8 * GIB))
    assert (found.evidence["steps_left"], found.severity) == (None, Severity.LOW)


def test_memory_that_comes_back() -> None:
    assert judge("memory-growth", analyse(gemm, 12, allocations(12, GIB, 0, 2 * GIB), 8 * GIB)) is None
    for memory, steps in ((None, 12), (allocations(4, GIB, 64 << 20, 2 * GIB), 4)):
        assert isinstance(judge("memory-growth", analyse(gemm, steps, memory, 8 * GIB)), Skipped)
    # What grows on the host is not the device's.
    host = allocations(12, GIB, 64 << 20, 2 * GIB, device_type=0)
    assert isinstance(judge("memory-growth", analyse(gemm, 12, host, 8 * GIB)), Skipped)


@pytest.mark.parametrize(("total_gib", "severity"), [(10.0, None), (2.1, Severity.LOW), (2.01, Severity.MEDIUM)])
def test_memory_close_to_the_device_s_own(total_gib: float, severity: Severity | None) -> None:
    memory = allocations(4, GIB, 0, 2 * GIB)
    found = judge("memory-pressure", analyse(gemm, 4, memory, round(total_gib * GIB)))
    assert (found.severity if isinstance(found, Finding) else found) == severity


def optimizer_steps(plant: Plant, steps: int, first: list[Row]) -> TraceAnalysis:
    """Steps that only their optimizer marks, the first of which the recording cut: it holds ``first``."""
    rows = list(first)
    for step in range(steps):
        rows += [*plant(step * STEP_US, step), mark("Optimizer.step#SGD.step", (step + 1) * STEP_US - 2, 2)]
    return TraceAnalysis(ranks=(reduce_rank(PlainTrace(rows), ReduceOptions()).rank,))


def test_what_happens_once_before_the_steps_is_no_cost_of_every_step() -> None:
    """Five steps' time of start-up: allocations and a wait for the device, then kernels that leave no gap."""
    start = -5 * STEP_US
    start_up = [
        op("aten::to", start, 2400),
        call("cudaLaunchKernel", start + 1, 5, 9001),
        kernel("warm", start + 10, 90, 9001),
        call("cudaStreamSynchronize", start + 10, 95),
        call("cudaMalloc", start + 2500, 2400),
        call("cudaLaunchKernel", start + 4950, 5, 9002),
        kernel("warm", start + 4960, 30, 9002),
    ]
    analysis = optimizer_steps(gemm, 6, start_up)
    lead = analysis.lead
    assert lead.timeline.idle is not None
    assert lead.timeline.in_steps is not None
    assert lead.timeline.idle.idle_ns > 4 * STEP_US * US
    assert lead.timeline.in_steps.steps_count == lead.complete_steps_count == 5
    assert lead.timeline.in_steps.idle.idle_ns == lead.timeline.in_steps.partition.idle_ns < STEP_US * US
    for rule_id in ("host-sync", "allocator-thrash", "launch-bound"):
        assert judge(rule_id, analysis) is None, rule_id


def test_a_fault_of_the_steps_is_measured_in_the_steps() -> None:
    """A start-up as long as the steps would halve the share of a fault that is in each of them."""
    rows = [call("cudaLaunchKernel", -6000, 5, 9001), kernel("warm", -5990, 5980, 9001)]
    found = find_one("launch-bound", optimizer_steps(launches_late, 6, rows))
    assert found.cost_ratio == pytest.approx(0.82, abs=0.03)
    assert found.evidence["kernels_per_step"] == 20


def test_waits_of_every_fifth_step_are_not_forecast_from_steps_without_them() -> None:
    def plant(at: int, step: int) -> list[Row]:
        return gemm(at, step)

    rows: list[Row] = []
    at = 0
    for step in range(300):
        slow = 4 * STEP_US if step % 5 == 4 else 0
        rows += [mark(f"ProfilerStep#{step}", at, STEP_US + slow)]
        rows += [mark(LOADER, at, slow)] if slow else []
        rows += [op("aten::add", at + slow + 20 + i, 1) for i in range(900)]
        rows += plant(at + slow, step)
        at += STEP_US + slow
    lead = reduce_rank(PlainTrace(rows), ReduceOptions()).rank
    found = find_one("input-bound", TraceAnalysis(ranks=(lead,)))
    assert found.cost_ratio == pytest.approx(0.44, abs=0.02)
    # All the steps that fit into the graph hold their share of the waits; the three around the median would say 0.
    assert saving_of(found).mid_ratio > 0.3


def test_a_host_that_is_behind_all_along_is_launch_bound_with_long_kernels_too() -> None:
    """40 us of every 100: no kernel is short, but nothing is queued when one ends."""

    def behind(kernels: int) -> Finding | Skipped | None:
        def plant(at: int, step: int) -> list[Row]:
            rows = []
            for i in range(kernels):
                rows += [
                    op("aten::mm", at + 100 * i, 95),
                    call("cudaLaunchKernel", at + 100 * i + 85, 6, 100 * step + i + 1),
                ]
                rows += [kernel("gemm", at + 100 * i + 92, 40, 100 * step + i + 1)]
            return rows

        return judge("launch-bound", analyse(plant))

    found = behind(10)
    assert isinstance(found, Finding)
    assert found.cost_ratio == pytest.approx(0.54, abs=0.02)  # without the calls themselves
    assert behind(2) is None  # too few to say so

    def single(at: int, step: int) -> list[Row]:
        """One late call in a step of ten kernels: slow, but not a matter of launching."""
        rows = [op("aten::mm", at, 300)]
        for i in range(10):
            rows += [call("cudaLaunchKernel", at + 300 + 5 * i, 4, 100 * step + i + 1)]
            rows += [kernel("gemm", at + 310 + 60 * i, 60, 100 * step + i + 1)]
        return rows

    assert judge("launch-bound", analyse(single)) is None


def test_an_inference_is_not_told_to_exchange_gradients() -> None:
    def with_operators(*names: str) -> Plant:
        def plant(at: int, step: int) -> list[Row]:
            marks = [op(name, at + 10 + 20 * i, 15) for i, name in enumerate(names)]
            return [*communicates_alone(at, step), *marks]

        return plant

    serving = find_one("exposed-communication", analyse(with_operators("aten::mm")))
    training = find_one(
        "exposed-communication", analyse(with_operators("aten::mm", "autograd::engine::evaluate_function: Mm"))
    )
    unknown = find_one("exposed-communication", analyse(communicates_alone))
    techniques = [fix_of(one).technique for one in (serving, training, unknown)]
    assert techniques == ["overlap-own-collectives", "fewer-synchronisations", "fewer-synchronisations"]


def test_a_verdict_names_the_one_gap_that_is_most_of_the_idle_time() -> None:
    rows = [call("cudaLaunchKernel", 0, 5, 1), kernel("gemm", 10, 100, 1), call("cudaLaunchKernel", 5000, 5, 2)]
    rows += [kernel("gemm", 5010, 100, 2), call("cudaLaunchKernel", 5120, 5, 3), kernel("gemm", 5130, 100, 3)]
    analysis = TraceAnalysis(ranks=(reduce_rank(PlainTrace(rows), ReduceOptions()).rank,))
    assert "one gap of 4.9 ms" in report_trace_analysis(analysis).verdict


def test_a_device_that_idles_is_below_the_band_and_its_causes_are_those_of_its_gaps() -> None:
    report = report_trace_analysis(analyse(launches_late))
    assert report.utilization is not None
    assert report.utilization.busy_ratio == pytest.approx(0.08, abs=0.01), "20 kernels of 4 us in 1000 us"
    (found,) = (one for one in report.findings if one.rule == "low-utilization")
    assert found.severity is Severity.LOW
    causes = found.evidence["causes_ratio"]
    assert isinstance(causes, dict)
    assert next(iter(causes)) == "launches that come late"
    assert sum(float(str(share)) for share in causes.values()) == pytest.approx(0.92, abs=0.01)
    assert found.evidence["see"] == {"launches that come late": "launch-bound"}
    assert report.findings.index(found) > 0, "it stands behind what owns the time"
    assert not [one for one in report_trace_analysis(analyse(gemm)).findings if one.rule == "low-utilization"]


def test_a_target_for_a_trace_is_judged_or_skipped_with_its_reason() -> None:
    wanted = replace(analyse(gemm), targets={"utilization": 0.999, "mfu": 0.4})
    report = report_trace_analysis(wanted)
    (found,) = (one for one in report.findings if one.rule == "low-utilization")
    assert found.severity is Severity.MEDIUM
    assert [one.rule for one in report.skipped].count("low-utilization") == 1


def test_a_trace_that_fills_its_device_ranks_the_remedies() -> None:
    memory = allocations(4, 76 * GIB, 0, 79 * GIB)
    report = report_trace_analysis(analyse(gemm, memory=memory, total=80 * GIB))
    (found,) = (one for one in report.findings if one.rule == "memory-pressure")
    saves = found.evidence["saves_at_most_bytes"]
    assert isinstance(saves, dict)
    assert {"accumulation", "activation-checkpointing", "bf16-autocast"} <= set(saves)
    assert "fsdp2" not in saves, "one rank has nothing to shard"
    assert fix_of(found).technique == next(iter(saves))
