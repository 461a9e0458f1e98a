from __future__ import annotations

import json

import pytest

from hotloop.ahead.plan.hardware_files import list_hardware, read_hardware
from hotloop.core.timeline import KernelRow, OpRow
from hotloop.evidence.analyze.timeline.classes import classify_work
from hotloop.evidence.analyze.timeline.flops import count_work, find_peaks
from hotloop.evidence.analyze.timeline.links import link_device_work
from hotloop.evidence.analyze.timeline.tables import (
    tabulate_kernels,
    tabulate_modules,
    tabulate_ops,
)

from .plain_trace import US, PlainTrace, Row, call, copy, frame, kernel, op


def kernels(*rows: Row, top: int | None = None) -> tuple[tuple[KernelRow, ...], int]:
    trace = PlainTrace(rows)
    links = link_device_work(trace)
    return tabulate_kernels(trace, links, classify_work(trace, links), top=top)


def ops(*rows: Row, sort: str = "device_time") -> dict[str, OpRow]:
    trace = PlainTrace(rows)
    return {o.name: o for o in tabulate_ops(trace, link_device_work(trace), sort=sort).rows}


def test_kernels_by_name_with_their_figures() -> None:
    rows, left = kernels(
        kernel("gemm", 0, 10, blocks_per_sm=2.0, occupancy_ratio=0.5),
        kernel("gemm", 20, 30, blocks_per_sm=6.0, occupancy_ratio=0.1),
        copy("Memcpy HtoD (Pinned -> Device)", 60, 5),
    )
    gemm, h2d = rows
    assert (gemm.count, gemm.total_ns, gemm.mean_ns, left) == (2, 40_000, 20_000, 0)
    assert (gemm.blocks_per_sm, gemm.occupancy_ratio) == (5.0, pytest.approx(0.2))
    assert (h2d.kind, h2d.occupancy_ratio) == ("mem", None)


def test_operators_own_what_they_launch_and_what_they_call_launches() -> None:
    rows = ops(
        op("aten::linear", 0, 50),
        op("aten::addmm", 10, 30),
        call("cudaLaunchKernel", 20, 5, 1),
        op("aten::linear", 100, 50),
        op("aten::addmm", 110, 30),
        call("cudaLaunchKernel", 120, 5, 2),
        kernel("gemm", 60, 7, 1),
        kernel("gemm", 160, 9, 2),
    )
    linear, addmm = rows["aten::linear"], rows["aten::addmm"]
    assert (linear.count, linear.host_total_ns, linear.host_self_ns) == (2, 100 * US, 40 * US)
    assert (linear.device_total_ns, linear.device_self_ns) == (16 * US, 0)
    assert (addmm.device_total_ns, addmm.device_self_ns) == (16 * US, 16 * US)


def test_an_operator_that_calls_itself_counts_once() -> None:
    rows = ops(
        op("aten::sum", 0, 50), op("aten::sum", 10, 30), call("cudaLaunchKernel", 20, 5, 1), kernel("r", 60, 7, 1)
    )
    total = rows["aten::sum"]
    assert (total.count, total.host_total_ns, total.host_self_ns) == (2, 50 * US, 50 * US)
    assert total.device_total_ns == 7 * US


def test_other_shapes_are_other_rows() -> None:
    trace = PlainTrace([op("aten::mm", 0, 5, shapes="[[2,3],[3,4]]"), op("aten::mm", 10, 5, shapes="[[4,3],[3,4]]")])
    table = tabulate_ops(trace, link_device_work(trace), sort="flops")
    assert [o.shapes for o in table.rows] == ["[[4,3],[3,4]]", "[[2,3],[3,4]]"]
    assert [o.flops for o in table.rows] == [96, 48]
    assert table.flops == 144


def test_one_unknown_product_leaves_the_sum_unknown() -> None:
    trace = PlainTrace([op("aten::mm", 0, 5, shapes="[[2,3],[3,4]]"), op("aten::mm", 10, 5)])
    assert tabulate_ops(trace, link_device_work(trace)).flops is None
    trace = PlainTrace([op("aten::add", 0, 5)])
    assert tabulate_ops(trace, link_device_work(trace)).flops is None


def test_flops_of_the_file_come_first() -> None:
    assert ops(op("aten::mm", 0, 5, shapes="[[2,3],[3,4]]", flops=50))["aten::mm"].flops == 50
    assert ops(op("aten::mul", 0, 5, flops=7))["aten::mul"].flops == 7


@pytest.mark.parametrize(
    ("name", "shapes", "concrete", "flops"),
    [
        ("aten::addmm", [[4], [2, 3], [3, 4]], None, 48),
        ("aten::bmm", [[5, 2, 3], [5, 3, 4]], None, 240),
        ("aten::baddbmm", [[5, 2, 4], [5, 2, 3], [5, 3, 4]], None, 240),
        ("aten::linear", [[7, 2, 3], [4, 3], [4]], None, 336),
        # out = (5 + 2 - 3) // 2 + 1 = 3 in both directions; 2 x batch x 3 x 3 x weights
        ("aten::conv2d", [[2, 3, 5, 5], [8, 3, 3, 3], []], ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "1"], 7776),
        (
            "aten::_convolution",
            [[2, 3, 5, 5], [8, 3, 3, 3], []],
            ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
            7776,
        ),
        # both gradients cost a forward each
        (
            "aten::convolution_backward",
            [[2, 8, 3, 3], [2, 3, 5, 5], [8, 3, 3, 3]],
            ["", "", "", "[8]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"],
            15552,
        ),
        # depthwise: weights (8, 1, 3, 3)
        ("aten::conv2d", [[1, 8, 4, 4], [8, 1, 3, 3]], ["", "", "", "[1]", "[1]", "[1]", "8"], 2304),
        ("aten::_scaled_dot_product_flash_attention", [[2, 4, 16, 8]] * 3, None, 2 * 2 * 4 * 16 * 16 * 16),
    ],
)
def test_formulas(name: str, shapes: list[list[int]], concrete: list[str] | None, flops: int) -> None:
    work = count_work(name, json.dumps(shapes), None if concrete is None else json.dumps(concrete))
    assert work.flops == flops


@pytest.mark.parametrize(
    ("name", "shapes", "concrete"),
    [
        ("aten::mm", "[[2,3]]", None),
        ("aten::mm", "[[2,3,4],[3,4]]", None),
        ("aten::mm", "not json", None),
        ("aten::mm", None, None),
        ("aten::conv2d", "[[2,3,5,5],[8,3,3,3]]", None),
        ("aten::conv2d", "[[2,3,5,5],[8,3,3,3]]", '["","","","same","","",""]'),
        ("aten::conv2d", "[[2,3,5,5],[8,3,3,3]]", '["","","","[0,0]","[1,1]","[1,1]"]'),
        ("aten::add", "[[2,3],[2,3]]", None),
    ],
)
def test_what_the_shapes_do_not_tell_is_unknown(name: str, shapes: str | None, concrete: str | None) -> None:
    assert count_work(name, shapes, concrete) is None


def test_modules_from_python_frames() -> None:
    trace = PlainTrace(
        [
            frame("nn.Module: Net_0", 0, 100),
            frame("nn.Module: Linear_0", 10, 30),
            op("aten::mm", 15, 20),
            call("cudaLaunchKernel", 20, 5, 1),
            call("cudaLaunchKernel", 60, 5, 2),
            kernel("gemm", 30, 7, 1),
            kernel("gemm", 70, 2, 2),
        ]
    )
    rows = {m.name: m for m in tabulate_modules(trace, link_device_work(trace))}
    assert (rows["Net_0"].device_total_ns, rows["Net_0"].host_total_ns) == (9 * US, 100 * US)
    assert rows["Linear_0"].device_total_ns == 7 * US


def test_the_peaks_are_those_of_the_planner() -> None:
    """Two tables hold the data sheets' figures; where both know a device they agree but for rounding."""
    names = {"fp32": "float32", "tf32": "tf32", "bf16": "bfloat16", "fp16": "float16"}
    compared = 0
    for stem in list_hardware():
        planned = read_hardware(stem)
        peaks = find_peaks(planned.name)
        for kind, rate in planned.peak_flops.items():
            if peaks is not None and kind in names:
                assert peaks.flops_per_s[names[kind]] == pytest.approx(rate, rel=1e-3), (stem, kind)
                compared += 1
    assert compared >= 30


def test_recurrent_layers_and_experts_are_counted() -> None:
    """Every one of 5 x 3 steps meets the matrices of both layers: 2 x 15 x 64 x (8 + 16) x 2; backward twice that."""
    weights = "[[64,8],[64,16],[64],[64],[64,8],[64,16]]"
    forward = count_work("aten::_cudnn_rnn", f"[[5,3,8],{weights},[],[]]")
    backward = count_work("aten::_cudnn_rnn_backward", f"[[5,3,8],{weights},[],[]]")
    assert (forward.flops, backward.flops) == (2 * 15 * 64 * 24 * 2, 4 * 15 * 64 * 24 * 2)
    experts = count_work("aten::_grouped_mm", "[[100,8],[4,8,16],[4]]")
    assert experts.flops == 2 * 100 * 8 * 16, "a row meets its own expert alone"
