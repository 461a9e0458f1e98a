from __future__ import annotations

import pytest

from hotloop.core.phases import PHASES
from hotloop.core.timeline import RankTimeline
from hotloop.evidence.analyze.timeline.anatomy import name_phase
from hotloop.evidence.analyze.timeline.reduce import reduce_trace

from .plain_trace import US, PlainTrace, Row, call, copy, frame, kernel, mark, op

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def reduce(*rows: Row) -> RankTimeline:
    return reduce_trace(PlainTrace(rows))


def host_us(t: RankTimeline, step: int = 0) -> dict[str, int]:
    return {name: ns // US for name, ns in zip(PHASES, t.steps[step].phases_ns, strict=True) if ns}


def device_us(t: RankTimeline) -> dict[str, int]:
    return {name: ns // US for name, ns in zip(PHASES, t.anatomy.device_ns, strict=True) if ns}


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("DATA_LOADING", "input_wait"),
        ("## forward:split_features ##", "forward"),
        ("ForwardPass", "forward"),
        ("model.fwd", "forward"),
        ("BACKWARD", "backward"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("Optimizer.zero_grad#AdamW.zero_grad", "optimizer"),
        ("optimizer_step", "optimizer"),
        ("[pl][profile][Strategy]DDPStrategy.batch_to_device", "h2d"),
        ("nccl:all_reduce", "communication"),
        ("## all2all_data:lengths ##", "communication"),
        ("save_checkpoint", "checkpoint"),
        ("Validation epoch", "validation"),
        ("Epoch 3", "other"),
        ("train_step", "other"),
        ("data", "input_wait"),
        ("loss", "forward"),
        ("loss.backward", "backward"),
        ("forward_backward", "other"),
        ("DeepSpeedEngine.allreduce_gradients", "communication"),
        ("## sparse_data_dist ##", None),
        ("activation_checkpoint_block", None),
        ("fastforwarding", None),
        ("interval", None),
        ("attention", None),
    ],
)
def test_names_stand_for_phases_by_whole_words(name: str, phase: str | None) -> None:
    assert name_phase(name) == phase


HOST = {
    "a drawn step is cut exactly and the inner range wins": (
        [
            mark("ProfilerStep#0", 0, 100),
            mark(LOADER, 2, 18),
            mark("FORWARD", 25, 30),
            op("record_param_comms", 30, 5),
            mark("backward", 55, 20),
            mark("Optimizer.step#SGD.step", 80, 10),
        ],
        {
            "input_wait": 18,
            "forward": 25,
            "backward": 20,
            "optimizer": 10,
            "communication": 5,
            "other": 22,
        },
    ),
    # Gradient accumulation: two passes with a forward between them.
    "what the main thread begins between ends a pass": (
        [
            mark("ProfilerStep#0", 0, 100),
            op("aten::mm", 10, 10),
            op(NODE, 20, 10, "autograd"),
            op("aten::mm", 40, 10),
            op(NODE, 50, 20, "autograd"),
        ],
        {"forward": 20, "backward": 30, "other": 50},
    ),
    "backward on the main thread holds its own operators": (
        [
            mark("ProfilerStep#0", 0, 100),
            op("aten::addmm", 10, 10),
            op(NODE, 30, 10),
            op("aten::mm", 32, 5),
            op(NODE, 44, 6),
            op("aten::mm", 45, 3),
        ],
        {"forward": 10, "backward": 20, "other": 70},
    ),
    "backward frames cover what no operator shows": (
        [
            mark("ProfilerStep#0", 0, 100),
            frame("torch/_tensor.py(525): backward", 30, 40),
            op(NODE, 40, 10, "autograd"),
        ],
        {"backward": 40, "other": 60},
    ),
}


@pytest.mark.parametrize("name", HOST)
def test_the_time_of_a_step_belongs_to_its_phases(name: str) -> None:
    rows, phases = HOST[name]
    assert host_us(reduce(*rows)) == phases


def test_autograd_on_another_thread_blocks_the_main_one() -> None:
    """No forward is drawn: it lies between the batch and the pass, Python between two operators included."""
    t = reduce(
        mark("ProfilerStep#0", 0, 100),
        op("aten::empty", 1, 1),
        mark(LOADER, 5, 10),
        op("aten::mm", 20, 5),
        op("aten::relu", 27, 3),
        op(NODE, 40, 10, "autograd"),
        op(NODE, 55, 5, "autograd"),
        op("aten::clip_grad", 62, 3),
        mark("Optimizer.step#SGD.step", 70, 20),
    )
    assert host_us(t) == {"input_wait": 10, "forward": 10, "backward": 20, "optimizer": 20, "other": 40}
    assert "forward" in t.anatomy.phases_seen


def test_old_releases_draw_their_ranges_as_operators() -> None:
    t = reduce(
        op("ProfilerStep#5", 0, 100),
        op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 40),
        op("aten::stack", 5, 30),
        op("aten::conv2d", 45, 10),
        op("CudnnConvolutionBackward", 60, 20, "autograd"),
        op("Optimizer.step#SGD.step", 85, 10),
    )
    assert t.step_source == "ProfilerStep"
    assert host_us(t) == {"input_wait": 40, "forward": 10, "backward": 20, "optimizer": 10, "other": 20}
    assert "ProfilerStep#5" not in {o.name for o in t.ops}


def test_a_copy_from_the_host_is_h2d_with_its_wait() -> None:
    t = reduce(
        mark("ProfilerStep#0", 0, 100),
        op("aten::to", 10, 30),
        op("aten::_to_copy", 11, 28),
        op("aten::copy_", 12, 26),
        call("cudaMemcpyAsync", 13, 5, 1),
        call("cudaStreamSynchronize", 20, 15),
        copy("Memcpy HtoD (Pageable -> Device)", 15, 20, 1),
    )
    assert host_us(t) == {"h2d": 30, "other": 70}
    assert device_us(t) == {"h2d": 20}


def test_the_end_of_a_pass_that_waits_for_gloo_is_communication() -> None:
    """Only while a collective runs and the main thread has begun nothing: the rest stays other."""
    t = reduce(
        mark("ProfilerStep#0", 0, 100),
        op(NODE, 10, 10),
        mark("gloo:all_reduce", 15, 45, "comm"),
        op("torch.distributed.ddp.reducer::copy_bucket_to_grad", 70, 5),
        mark("Optimizer.step#SGD.step", 80, 10),
    )
    assert host_us(t)["optimizer"] == 10
    assert host_us(t) == {"backward": 65, "optimizer": 10, "other": 25}
    waiting = reduce(
        mark("ProfilerStep#0", 0, 100),
        op(NODE, 10, 10),
        mark("gloo:all_reduce", 15, 45, "comm"),
        op("aten::as_strided", 65, 1),
        mark("Optimizer.step#SGD.step", 80, 10),
    )
    assert host_us(waiting) == {"backward": 10, "communication": 40, "optimizer": 10, "other": 40}


def test_operators_without_a_backward_are_not_called_forward() -> None:
    assert host_us(reduce(mark("ProfilerStep#0", 0, 100), op("aten::mm", 10, 10))) == {"other": 100}
    told = reduce(mark("ProfilerStep#0", 0, 100), frame("nn.Module: Linear_0", 10, 20), op("aten::mm", 12, 10))
    assert host_us(told) == {"forward": 20, "other": 80}


def test_only_whole_steps_make_the_breakdown() -> None:
    t = reduce(
        op("aten::mm", 0, 5),
        mark("Optimizer.step#SGD.step", 10, 10),
        mark("Optimizer.step#SGD.step", 50, 10),
        mark("Optimizer.step#SGD.step", 90, 10),
    )
    breakdown = t.anatomy.breakdown
    assert breakdown.share("optimizer") == pytest.approx(20 / 80)
    assert tuple(breakdown.phases) == PHASES


def test_device_work_has_the_phase_of_its_launch() -> None:
    t = reduce(
        mark("ProfilerStep#0", 0, 100),
        mark("forward", 10, 20),
        call("cudaLaunchKernel", 15, 2, 1),
        op(NODE, 40, 10, "autograd"),
        call("cudaLaunchKernel", 42, 2, 2, "autograd"),
        call("cudaLaunchKernel", 46, 2, 3, "autograd"),
        mark("Optimizer.step#SGD.step", 60, 10),
        call("cudaLaunchKernel", 62, 2, 4),
        call("cudaLaunchKernel", 90, 2, 5),
        kernel("gemm", 30, 7, 1),
        kernel("gemm", 50, 11, 2),
        kernel("ncclDevKernel_AllReduce", 50, 13, 3, "20"),
        kernel("adam", 70, 3, 4),
        kernel("other", 95, 2, 5),
        kernel("lost", 98, 1),
    )
    assert device_us(t) == {"forward": 7, "backward": 11, "communication": 13, "optimizer": 3, "other": 2}


def test_ranges_of_the_user_are_listed_with_their_device_time() -> None:
    t = reduce(
        mark("outer", 0, 100),
        mark("block", 10, 20),
        op("aten::mm", 11, 5),
        call("cudaLaunchKernel", 12, 2, 1),
        mark("block", 40, 20),
        call("cudaLaunchKernel", 41, 2, 2),
        kernel("a", 50, 5, 1),
        kernel("a", 60, 6, 2),
    )
    rows = {r.name: r for r in t.anatomy.ranges}
    assert (rows["outer"].total_ns, rows["outer"].device_ns) == (100 * US, 11 * US)
    assert (rows["block"].count, rows["block"].total_ns, rows["block"].device_ns) == (2, 40 * US, 11 * US)
    assert rows["block"].phase is None
