"""Two timelines -> terms that sum to the change exactly, with intervals, and rows by kernel and operator."""

from __future__ import annotations

from functools import cache

import pytest

from hotloop.core.comparison import Comparison
from hotloop.core.timeline import RankTimeline
from hotloop.core.trace_results import ReducedTrace, ReducedTraces
from hotloop.evidence.analyze.timeline.compare_traces import compare_traces, normalize_name
from hotloop.evidence.analyze.timeline.reduce import ReduceOptions, reduce_trace
from hotloop.evidence.trace.inputs import find_traces, read_trace_file

from .plain_trace import TRACES, US, PlainTrace, Row, call, kernel, mark, op

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the public traces are not at {TRACES}")


def timeline(kernels: list[tuple[str, int]], loader_us: int = 20, steps: int = 3, top: int = 200) -> RankTimeline:
    """Per step: the loader, then one operator per kernel (name, us) on a stream, and a wait for it."""
    rows: list[Row] = []
    at = 0
    for i in range(steps):
        begin = at
        rows.append(mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, loader_us))
        at += loader_us
        for number, (name, length) in enumerate(kernels):
            rows.append(op(f"aten::{name}", at, 4, shapes=f"[[{len(name)}]]"))
            rows.append(call("cudaLaunchKernel", at + 1, 2, 100 * i + number + 1))
            rows.append(kernel(name, at + 2, length, 100 * i + number + 1))
            at += 5 + length
        rows.append(mark(f"ProfilerStep#{i}", begin, at - begin))
    return reduce_trace(PlainTrace(rows), ReduceOptions(top=top))


def diff_ranks(before: tuple[RankTimeline, ...], after: tuple[RankTimeline, ...]) -> Comparison:
    facts = PlainTrace([]).facts
    sides = [
        ReducedTraces(
            traces=tuple(
                ReducedTrace(
                    facts=facts,
                    notes=(),
                    result=one,
                )
                for one in side
            ),
            notes=(),
        )
        for side in (before, after)
    ]
    return compare_traces(("before", "after"), (sides[0], sides[1]))


def diff_timelines(before: RankTimeline, after: RankTimeline) -> Comparison:
    return diff_ranks((before,), (after,))


def test_terms_sum_to_the_change() -> None:
    """20 us of loader more and 10 us of a kernel more are 30 us, whatever else there is."""
    found = diff_timelines(timeline([("gemm", 30), ("relu", 5)]), timeline([("gemm", 40), ("relu", 5)], loader_us=40))
    assert found.step.whole.delta_ns == 30 * US
    assert sum(t.delta_ns for t in found.step.terms) == 30 * US
    (waited,) = [t for t in found.step.terms if t.name == "input_wait"]
    assert (waited.before_ns, waited.after_ns, waited.delta_ns, waited.half_width_ns) == (20 * US, 40 * US, 20 * US, 0)
    assert waited.is_certain
    terms = {t.name: t.delta_ns for t in found.device.terms}
    assert terms == {"compute": 10 * US, "exposed_comm": 0, "exposed_mem": 0, "idle": 20 * US}
    assert found.device.whole.delta_ns == 30 * US


def test_kernels_are_told_by_status() -> None:
    before = timeline([("gemm", 30), ("relu", 5), ("gone", 7), ("copy", 10), ("quick", 9)])
    after = timeline([("gemm", 40), ("relu", 5), ("new", 8), ("copy", 10), ("copy", 10), ("quick", 3)])
    rows = {r.name: r for r in diff_timelines(before, after).kernels}
    assert {name: row.status for name, row in rows.items()} == {
        "gemm": "slower", "relu": "same", "gone": "gone", "new": "new", "copy": "more calls", "quick": "faster",
    }  # fmt: skip
    assert rows["gemm"].delta_ns == 10 * US
    assert (rows["copy"].before_count, rows["copy"].after_count, rows["copy"].count_effect_ns) == (1, 2, 10 * US)
    assert (rows["new"].before_ns, rows["gone"].after_ns) == (None, None)
    assert sum(r.delta_ns for r in rows.values()) == pytest.approx((76 - 61) * US)


def test_ops_match_by_name_and_shape() -> None:
    rows = diff_timelines(timeline([("gemm", 30)]), timeline([("gemm", 60)])).ops
    (gemm,) = [r for r in rows if r.name == "aten::gemm"]
    assert (gemm.shapes, gemm.status, gemm.delta_ns) == ("[[4]]", "slower", 30 * US)


def test_what_may_only_be_small_is_not_called_gone() -> None:
    found = diff_timelines(timeline([("gemm", 30), ("relu", 5)]), timeline([("gemm", 30), ("relu", 5)], top=1))
    assert {r.name: r.status for r in found.kernels} == {"gemm": "same", "relu": "not listed after"}
    assert any("only the largest kernels" in note for note in found.notes)


def test_equal_timelines_differ_in_nothing() -> None:
    one = timeline([("gemm", 30), ("relu", 5)])
    found = diff_timelines(one, one)
    assert found.step.whole.delta_ns == 0
    assert not found.step.whole.is_certain
    assert {r.status for r in (*found.kernels, *found.ops)} == {"same"}
    assert found.is_same


def test_a_side_without_a_device_has_no_device_terms() -> None:
    host_only = reduce_trace(PlainTrace([mark("ProfilerStep#0", 0, 50), mark("FORWARD", 0, 20)]))
    found = diff_timelines(host_only, timeline([("gemm", 30)]))
    assert found.device is None
    assert found.step.whole.half_width_ns is None


def test_without_steps_it_says_so() -> None:
    rows = [op("aten::x", 0, 20), call("cudaLaunchKernel", 2, 2, 1), kernel("gemm", 5, 30, 1)]
    found = diff_timelines(reduce_trace(PlainTrace(rows)), timeline([("gemm", 30)]))
    assert any("no steps are marked" in text for text in found.warnings)
    assert any("in different ways" in text for text in found.warnings)


def test_ranks_count_as_their_mean() -> None:
    """Kernels of 30 and 50 us are 40 us; each kernel that one of two ranks runs once is half a call a rank."""
    ranks = (timeline([("gemm", 30)]), timeline([("gemm", 50), ("relu", 10)]))
    found = diff_ranks((timeline([("gemm", 30)]),), ranks)
    assert found.device.whole.before_ns == (20 + 5 + 30) * US
    assert found.device.whole.after_ns == (20 + 5 + 30 + 20 + 5 + 50 + 5 + 10) * US // 2
    assert sum(t.delta_ns for t in found.step.terms) == found.step.whole.delta_ns == 35 * US // 2
    rows = {r.name: r for r in found.kernels}
    assert (rows["gemm"].after_ns, rows["gemm"].after_count) == (pytest.approx(40 * US), pytest.approx(1))
    assert (rows["relu"].after_count, rows["relu"].status) == (0.5, "new")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("triton_poi_fused_add_relu_12", "triton_poi_fused_add_relu"),
        ("triton_red_fused_native_layer_norm_3_0d1d2d", "triton_red_fused_native_layer_norm"),
        ("kernel_0d1f9abc77", "kernel"),
        ("void gemm<float, 128>(int)", "void gemm<float, 128>(int)"),
        ("volta_sgemm_64x64_nt", "volta_sgemm_64x64_nt"),
        ("Optimizer.step#SGD.step", "Optimizer.step#SGD.step"),
        ("ProfilerStep#12", "ProfilerStep"),
    ],
)
def test_names_lose_what_differs_between_builds(name: str, short: str) -> None:
    assert normalize_name(name) == short


@cache
def real(name: str) -> RankTimeline:
    (file,) = find_traces([TRACES / name]).files
    (trace,) = read_trace_file(file)
    return reduce_trace(trace)


@needs_traces
def test_why_four_workers_won_less_than_the_input_wait() -> None:
    """67.9 ms of waiting went, but 32.7 ms came back: every phase of the host was slower, while the device computed
    for as long as before."""
    found = diff_timelines(real("resnet50_workers_0"), real("resnet50_workers_4"))
    terms = {t.name: t.delta_ns / 1e6 for t in found.step.terms}
    assert found.step.whole.delta_ns == pytest.approx(-35.1e6, abs=0.1e6)
    assert terms["input_wait"] == pytest.approx(-67.9, abs=0.1)
    assert sum(v for k, v in terms.items() if k != "input_wait") == pytest.approx(32.7, abs=0.1)
    assert min(terms[p] for p in ("h2d", "forward", "backward", "optimizer")) > 4
    device = {t.name: t for t in found.device.terms}
    assert device["compute"].delta_ns == pytest.approx(0.6e6, abs=0.1e6)
    assert device["idle"].is_certain
