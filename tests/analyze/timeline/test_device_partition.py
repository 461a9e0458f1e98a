from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.timeline import DevicePartition
from hotloop.evidence.analyze.timeline.classes import (
    classify_work,
    cover_devices,
    describe_device,
    list_comm_groups,
    partition_windows,
)
from hotloop.evidence.analyze.timeline.links import link_device_work

from .plain_trace import US, PlainTrace, Row, call, copy, kernel, mark, op

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def partition(*rows: Row) -> DevicePartition:
    trace = PlainTrace(rows)
    links = link_device_work(trace)
    (cover,) = cover_devices(trace, links, classify_work(trace, links))
    return describe_device(trace, links, cover).partition


def kinds(*rows: Row) -> list[tuple[int, int]]:
    trace = PlainTrace(rows)
    links = link_device_work(trace)
    classes = classify_work(trace, links)
    return list(zip(classes.kind.tolist(), classes.source.tolist(), strict=True))


def test_parts_are_exclusive_and_sum_to_the_window() -> None:
    """compute 0-40, comm 30-60, copy 50-80, nothing 80-90, compute 90-100."""
    p = partition(
        kernel("gemm", 0, 40),
        kernel(NCCL, 30, 30, stream="20"),
        copy("Memcpy HtoD (Pinned -> Device)", 50, 30, stream="24"),
        kernel("gemm", 90, 10),
    )
    assert p == DevicePartition(
        window_ns=100 * US,
        busy_ns=90 * US,
        idle_ns=10 * US,
        compute_ns=50 * US,
        comm_ns=30 * US,
        mem_ns=30 * US,
        overlap_ns=10 * US,
        exposed_comm_ns=20 * US,
        exposed_mem_ns=20 * US,
    )
    assert p.overlap_ratio == pytest.approx(1 / 3)


def test_the_kernel_says_that_it_is_a_collective() -> None:
    assert kinds(kernel("my_ring_kernel", 0, 5, collective="allreduce")) == [(1, 1)]
    assert kinds(kernel("my_ring_kernel", 0, 5, process_group="default_pg")) == [(1, 1)]


@pytest.mark.parametrize("name", ["record_param_comms", "c10d::allreduce_", "nccl:all_reduce", "symm_mem::one_shot"])
def test_a_kernel_of_a_collective_operator_is_comm_by_metadata(name: str) -> None:
    assert kinds(op(name, 0, 10), call("cudaLaunchKernel", 1, 2, 5), kernel("plain", 5, 5, 5)) == [(1, 1)]
    assert kinds(mark(name, 0, 10), call("cudaLaunchKernel", 1, 2, 5), kernel("plain", 5, 5, 5)) == [(1, 1)]


def test_copies_around_a_collective_stay_what_they_are() -> None:
    """What aten launches inside of a collective is compute, and a copy is mem wherever it comes from."""
    rows = (
        op("record_param_comms", 0, 20),
        op("aten::copy_", 1, 5),
        call("cudaLaunchKernel", 2, 1, 5),
        kernel("elementwise", 6, 1, 5),
        call("cudaMemcpyAsync", 10, 1, 6),
        copy("Memcpy DtoD (Device -> Device)", 12, 3, 6),
    )
    assert kinds(*rows) == [(0, 0), (2, 0)]


@pytest.mark.parametrize(
    "name",
    [
        NCCL,
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "void deep_ep::internode::dispatch<false, 4>(int4*)",
        "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>(int4*, float*)",
        "void other::ep::intranode::notify_dispatch<8>(int const*)",
        "nvshmemi_transfer_kernel",
        "void vllm::cross_device_reduce_2stage<float, 8>(vllm::RankData*)",
        "one_shot_all_reduce_kernel",
        "void mscclpp::allreduce7<__half>(__half*)",
        "void multimem_all_reduce_kernel<c10::BFloat16>()",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<float>()",
    ],
)
def test_names_tell_where_metadata_is_absent(name: str) -> None:
    assert kinds(kernel(name, 0, 5)) == [(1, 2)]


@pytest.mark.parametrize(
    "name",
    [
        "ampere_sgemm_128x64_tn",
        "void layer_norm_block_all_reduce<float>()",
        "reduce_kernel<512>",
        "broadcast_add",
        "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*)",
    ],
)
def test_other_names_are_compute(name: str) -> None:
    assert kinds(kernel(name, 0, 5)) == [(0, 0)]


def test_comm_groups_say_what_told_them() -> None:
    rows = [op("nccl:all_reduce", 0, 3), call("cudaLaunchKernel", 1, 1, 5), kernel(NCCL, 5, 5, 5), kernel(NCCL, 20, 9)]
    trace = PlainTrace(rows)
    links = link_device_work(trace)
    groups = list_comm_groups(trace, links, classify_work(trace, links))
    assert [(g.comm_source, g.count, g.total_ns) for g in groups] == [("name", 1, 9 * US), ("metadata", 1, 5 * US)]


def test_waits_and_drawn_ranges_are_no_device_work() -> None:
    from hotloop.core.trace import Category

    rows = [kernel("gemm", 0, 10), kernel("gemm", 20, 10)]
    rows += [Row(c, "Stream Sync", 0, 100 * US, "gpu", -1, "") for c in (Category.SYNC, Category.DEVICE_ANNOTATION)]
    assert partition(*rows).window_ns == 30 * US


def test_each_device_is_partitioned_by_itself() -> None:
    trace = PlainTrace([kernel("gemm", 0, 10, device=0), kernel("gemm", 0, 50, device=1)])
    links = link_device_work(trace)
    covers = cover_devices(trace, links, classify_work(trace, links))
    described = [describe_device(trace, links, c) for c in covers]
    assert [(d.device, d.partition.compute_ns, d.gpu_events) for d in described] == [(1, 50 * US, 1), (0, 10 * US, 1)]


works = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 15), st.sampled_from(["gemm", NCCL, "copy"])), min_size=1, max_size=15
)
windows = st.lists(st.tuples(st.integers(-5, 80), st.integers(0, 40)), max_size=6)


@given(works, windows)
def test_any_window_is_partitioned_like_by_counting_nanoseconds(
    found: list[tuple[int, int, str]], cuts: list[tuple[int, int]]
) -> None:
    rows = [copy("Memcpy DtoD", s, n) if name == "copy" else kernel(name, s, n, stream=name) for s, n, name in found]
    trace = PlainTrace(rows)
    links = link_device_work(trace)
    (cover,) = cover_devices(trace, links, classify_work(trace, links))
    low = np.array([a * US for a, _ in cuts], dtype=np.int64)
    high = np.array([(a + n) * US for a, n in cuts], dtype=np.int64)
    for (a, n), p in zip(cuts, partition_windows(cover, low, high), strict=True):
        inside = set(range(a, a + n))
        on = {
            k: {t for s, m, name in found if name == k for t in range(s, s + m)} & inside
            for k in ("gemm", NCCL, "copy")
        }
        assert p.compute_ns == len(on["gemm"]) * US
        assert p.exposed_comm_ns == len(on[NCCL] - on["gemm"]) * US
        assert p.exposed_mem_ns == len(on["copy"] - on[NCCL] - on["gemm"]) * US
        assert p.idle_ns == len(inside - on["gemm"] - on[NCCL] - on["copy"]) * US
        assert p.overlap_ns == len(on["gemm"] & on[NCCL]) * US
