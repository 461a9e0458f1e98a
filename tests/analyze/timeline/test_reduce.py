from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.core.trace import Category
from hotloop.evidence.analyze.timeline.reduce import ReduceOptions, reduce_trace

from .plain_trace import PlainTrace, Row, kernel, op

NAMES = (
    "ProfilerStep#1",
    "ProfilerStep#2",
    "enumerate(DataLoader)#X.__next__",
    "Optimizer.step#SGD.step",
    "autograd::engine::evaluate_function: MmBackward0",
    "nccl:all_reduce",
    "gloo:all_reduce",
    "aten::mm",
    "aten::to",
    "step 3",
    "forward",
    "cudaLaunchKernel",
    "cudaGraphLaunch",
    "cudaStreamSynchronize",
    "cudaMalloc",
    "ncclDevKernel_AllReduce",
    "Memcpy HtoD (Pageable -> Device)",
    "Memcpy DtoH (Device -> Pageable)",
    "nn.Module: Net_0",
    "train.py(3): main",
)
FACTS = (
    {},
    {"shapes": "[[2,3],[3,4]]", "dtypes": '["float","float"]', "sequence_number": 4},
    {"shapes": "{}", "dtypes": "[1]", "concrete_inputs": "[[[", "forward_thread": 1},
    {"flops": 5, "bytes": 7, "occupancy_ratio": 0.5, "collective": "allreduce", "module": "Net"},
)
DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


@st.composite
def any_rows(draw: st.DrawFn) -> list[Row]:
    rows = []
    for _ in range(draw(st.integers(0, 30))):
        category = draw(st.sampled_from(list(Category)))
        on_device = category in DEVICE
        rows.append(
            Row(
                category,
                draw(st.sampled_from(NAMES)),
                draw(st.integers(0, 60)),
                draw(st.integers(0, 40)),
                draw(st.sampled_from(["main", "autograd", "gpu"])),
                draw(st.integers(-1, 1)) if on_device else -1,
                draw(st.sampled_from(["7", "20"])) if on_device else "",
                draw(st.integers(-1, 6)),
                draw(st.integers(-1, 6)),
                dict(draw(st.sampled_from(FACTS))),
            )
        )
    return rows


@settings(max_examples=150, deadline=None)
@given(any_rows(), st.booleans())
def test_whatever_a_file_holds_the_laws_hold(rows: list[Row], lost_threads: bool) -> None:
    """Overlaps, doubles, foreign correlations and threads: no error, and nothing is lost or counted twice."""
    trace = PlainTrace(rows)
    if lost_threads:
        trace.thread[:] = -1
    t = reduce_trace(trace)
    work = [r for r in rows if r.category in DEVICE]
    assert sum(d.gpu_events for d in t.devices) == len(work)
    assert sum(d.work_ns for d in t.devices) == sum(r.duration_ns for r in work)
    assert sum(k.total_ns for k in t.kernels) == sum(r.duration_ns for r in work)
    assert sum(k.count for k in t.kernels) == len(work)
    if t.devices:
        assert sum(t.anatomy.device_ns) <= t.devices[0].work_ns
        assert t.idle.idle_ns == t.devices[0].partition.idle_ns
    assert all(sum(s.phases_ns) == s.host_ns for s in t.steps)


def test_tables_are_as_long_as_asked_and_the_rest_is_counted() -> None:
    trace = PlainTrace([kernel(f"k{i}", 10 * i, i + 1) for i in range(8)] + [op(f"o{i}", i, 1) for i in range(8)])
    t = reduce_trace(trace, ReduceOptions(top=3))
    assert [k.name for k in t.kernels] == ["k7", "k6", "k5"]
    assert t.kernels_left_out_count == 5
    assert (len(t.ops), t.ops_left_out_count) == (3, 5)
