from __future__ import annotations

from hotloop.core.timeline import Ratios
from hotloop.evidence.analyze.timeline.reduce import reduce_trace

from .plain_trace import US, PlainTrace, Row, call, copy, kernel, mark, op

NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def measure(*rows: Row) -> Ratios:
    return reduce_trace(PlainTrace(rows)).ratios


def test_pageable_copies_are_told_by_name_or_unknown() -> None:
    pinned = copy("Memcpy DtoH (Device -> Pinned)", 50, 10)
    assert measure(copy("Memcpy HtoD (Pageable -> Device)", 0, 20), pinned).pageable_copies_ns == 20 * US
    assert measure(copy("Memcpy HtoD (Host -> Device)", 0, 20)).pageable_copies_ns is None


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
