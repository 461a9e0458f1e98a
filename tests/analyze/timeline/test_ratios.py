from __future__ import annotations

import pytest

from hotloop.analyze.timeline.reduce import reduce_trace
from hotloop.core.timeline import Ratios

from .plain_trace import US, PlainTrace, Row, call, copy, kernel, mark, op

NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def measure(*rows: Row) -> Ratios:
    return reduce_trace(PlainTrace(rows)).ratios


def test_copies_over_the_device_window() -> None:
    ratios = measure(
        copy("Memcpy HtoD (Pageable -> Device)", 0, 20),
        copy("Memcpy DtoH (Device -> Pinned)", 50, 10),
        kernel("a", 90, 10),
    )
    assert (ratios.h2d_ratio, ratios.d2h_ratio, ratios.pageable_copies_ns) == (0.2, 0.1, 20 * US)


def test_names_that_do_not_tell_pageable_leave_it_unknown() -> None:
    assert measure(copy("Memcpy HtoD (Host -> Device)", 0, 20)).pageable_copies_ns is None


def test_waiting_for_batches_over_the_steps() -> None:
    ratios = measure(mark("ProfilerStep#0", 0, 100), mark("enumerate(DataLoader)#X.__next__", 0, 40))
    assert ratios.data_wait_ratio == 0.4
    assert measure(mark("ProfilerStep#0", 0, 100)).data_wait_ratio is None


def test_all_reduce_over_backward_on_the_device() -> None:
    rows = [
        op(NODE, 0, 50, "autograd"),
        call("cudaLaunchKernel", 5, 2, 1, "autograd"),
        call("cudaLaunchKernel", 15, 2, 2, "autograd"),
        kernel("gemm", 20, 40, 1),
    ]
    reduced = measure(*rows, kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 40, 10, 2, "20"))
    assert reduced.allreduce_over_backward_ratio == 0.25
    gathered = measure(*rows, kernel("ncclDevKernel_AllGather_RING_LL", 40, 10, 2, "20"))
    assert gathered.allreduce_over_backward_ratio is None
    told = measure(*rows, kernel("ncclDevKernel_Generic", 40, 20, 2, "20", collective="allreduce"))
    assert told.allreduce_over_backward_ratio == 0.5


def test_all_reduce_over_backward_on_the_host() -> None:
    ratios = measure(mark("ProfilerStep#0", 0, 100), op(NODE, 10, 40), mark("gloo:all_reduce", 20, 30, "comm"))
    assert ratios.allreduce_over_backward_ratio == pytest.approx(30 / 40)


def test_a_forward_inside_of_backward_is_recompute() -> None:
    """Operators that autograd records inside a backward node run a forward again; a gradient's own ones do not."""
    ratios = measure(
        mark("ProfilerStep#0", 0, 200),
        op("aten::addmm", 0, 20, sequence_number=3),
        call("cudaLaunchKernel", 5, 2, 1),
        op(NODE, 50, 100, "autograd", sequence_number=3, forward_thread=1),
        op("aten::addmm", 55, 20, "autograd", sequence_number=9),
        call("cudaLaunchKernel", 60, 2, 2, "autograd"),
        op("aten::mm", 80, 20, "autograd"),
        call("cudaLaunchKernel", 85, 2, 3, "autograd"),
        kernel("gemm", 100, 30, 1),
        kernel("gemm", 130, 30, 2),
        kernel("gemm", 160, 40, 3),
    )
    assert ratios.recompute_ratio == 0.3


def test_recompute_is_unknown_without_a_backward() -> None:
    assert measure(op("aten::mm", 0, 5)).recompute_ratio is None
