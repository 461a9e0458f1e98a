"""Times on round hardware that reaches its data sheet, against values computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotloop.ahead.plan.hardware_files import list_hardware, read_efficiency, read_hardware
from hotloop.ahead.plan.time import Group, collective_ns, group, hardware_flops_per_token, hops_ns, predict_step

from .build_plan import DEVICE, IDEAL, SHAPE, make_workload, without_memory_time

FREE = without_memory_time()


def test_flops_alone_take_flops_over_peak() -> None:
    step = predict_step(make_workload(gpus=1, micro_batch=4, global_batch=8), FREE, IDEAL)
    matrices = 8 * (12 * 1024**2) + 32000 * 1024
    # Fused attention computes the causal half, and backward 2.5 times its forward.
    attention = 8 * 2 * 1024 * 1024 * 3.5
    assert step.compute_ns == pytest.approx(8 * 1024 * (6 * matrices + attention) / 1e14 * 1e9)
    assert step.exposed_ns == step.bubble_ns == step.offload_ns == 0


def test_bytes_alone_take_bytes_over_bandwidth() -> None:
    slow = replace(DEVICE, peak_flops={"bf16": 1e30})
    step = predict_step(make_workload(gpus=1, micro_batch=1, global_batch=1), slow, IDEAL)
    m, h = 1024, 1024
    products = [(m, 3 * h, h), (m, h, h), (m, 4 * h, h), (m, h, 4 * h)]
    layer = sum(2 * (a * b + b * c + c * a) for a, b, c in products) + 2 * m * (10 * h + 2 * 3 * h + 2 * 4 * h)
    head = 2 * (m * 32000 + 32000 * h + h * m)
    weights = 12 * SHAPE.layer_params
    expected = 8 * (3 * layer + weights) + 3 * head + 30 * m * 32000
    assert step.compute_ns == pytest.approx(expected / 1e12 * 1e9)
    assert step.optimizer_ns == pytest.approx(SHAPE.params * (28 + 12) / 1e12 * 1e9)


def test_parts_sum_to_the_step_and_the_range_is_around_it() -> None:
    for run in ({}, {"tp": 2, "pp": 2}, {"sharding": "fsdp"}, {"recompute": "full"}, {"offload": "optimizer"}):
        step = predict_step(make_workload(**run), DEVICE, IDEAL)
        parts = step.compute_ns + step.exposed_ns + step.bubble_ns + step.optimizer_ns + step.offload_ns
        assert parts == pytest.approx(step.mid_ns)
        assert step.low_ns * 1.25 == pytest.approx(step.mid_ns)
        assert step.high_ns == pytest.approx(step.mid_ns * 1.25)


def test_the_bubble_is_p_minus_1_over_v_m_of_the_work() -> None:
    work = make_workload(pp=4, gpus=4, micro_batch=1, global_batch=16)
    model = replace(SHAPE, vocab=1)
    step = predict_step(replace(work, model=model), FREE, IDEAL)
    assert step.bubble_ns / (step.compute_ns + step.exposed_ns) == pytest.approx(3 / 16, rel=1e-3)
    chunks = replace(work, model=model, run=replace(work.run, pipeline_chunks=2))
    assert predict_step(chunks, FREE, IDEAL).bubble_ns == pytest.approx(step.bubble_ns / 2, rel=0.05)


def test_a_layer_is_no_quicker_than_the_host_launches_it() -> None:
    slow_host = replace(IDEAL, host_ns=1e9)
    step = predict_step(make_workload(gpus=1, micro_batch=1, global_batch=2), FREE, slow_host)
    # Two micro-batches, eight layers, forward and backward.
    assert step.compute_ns == pytest.approx(2 * 8 * 2 * 1e9, rel=1e-2)
    compiled = predict_step(make_workload(gpus=1, micro_batch=1, global_batch=2, compiled=True), FREE, slow_host)
    assert compiled.compute_ns < step.compute_ns / 100


def test_hidden_communication_costs_its_contention_and_no_more() -> None:
    tight = replace(IDEAL, contention_ratio=0.2)
    hidden = predict_step(make_workload(sharding="ddp"), DEVICE, tight)
    bare = predict_step(make_workload(sharding="ddp", overlap=False), DEVICE, tight)
    message = SHAPE.params * 4
    reduced = 10_000 + 2 * 7 / 8 * message / 1e11 * 1e9
    assert bare.exposed_ns == pytest.approx(reduced)
    assert hidden.exposed_ns == pytest.approx(0.2 * reduced)


def test_what_no_compute_can_hide_is_exposed() -> None:
    slow = replace(DEVICE, inside=replace(DEVICE.inside, bytes_per_s=1e8))
    step = predict_step(make_workload(sharding="fsdp"), slow, IDEAL)
    assert step.exposed_ns > step.compute_ns


def test_tensor_parallelism_sends_two_all_reduces_a_pass() -> None:
    step = predict_step(make_workload(tp=8, micro_batch=1, global_batch=1), DEVICE, IDEAL)
    one = 10_000 + 2 * 7 / 8 * (1024 * 1024 * 2) / 1e11 * 1e9
    assert step.exposed_ns == pytest.approx(8 * 4 * one)


def test_full_recomputation_adds_a_forward_of_the_layers() -> None:
    plain = predict_step(make_workload(), FREE, IDEAL)
    again = predict_step(make_workload(recompute="full"), FREE, IDEAL)
    selective = predict_step(make_workload(recompute="selective"), FREE, IDEAL)
    forward = 8 * 1024 * (2 * 12 * 1024**2 + 2 * 1024 * 1024) * 8 / 1e14 * 1e9
    assert again.compute_ns - plain.compute_ns == pytest.approx(forward)
    assert selective.compute_ns - plain.compute_ns == pytest.approx(8 * 8 * 1024 * 2 * 1024 * 1024 / 1e14 * 1e9)
    tokens = again.tokens_per_s_per_gpu
    assert again.hfu_ratio == pytest.approx(tokens * hardware_flops_per_token(SHAPE, "full") / 1e14)
    assert plain.hfu_ratio == plain.mfu_ratio


def test_offloaded_optimizer_states_wait_for_the_host() -> None:
    step = predict_step(make_workload(gpus=1, offload="optimizer"), DEVICE, IDEAL)
    assert step.offload_ns == pytest.approx(SHAPE.params * (6 + 28) / 1e10 * 1e9)
    assert step.optimizer_ns == 0


def test_groups_are_numbered_node_by_node() -> None:
    assert group(8, 1, 8) == Group(8, 8)
    assert group(64, 1, 8).nodes == 8
    assert group(16, 4, 8) == Group(16, 2)
    assert group(4, 8, 8) == Group(4, 1)


def test_a_ring_over_nodes_runs_at_what_its_ranks_send_together() -> None:
    plain = {"inside_ratio": 1.0, "between_ratio": 1.0}
    assert collective_ns("all-gather", 1e9, Group(1, 1), DEVICE, **plain) == 0
    # 16 ranks on 2 nodes: 8 x 1e10 between nodes are less than 1e11 inside.
    assert collective_ns("all-gather", 1e9, Group(16, 8), DEVICE, **plain) == pytest.approx(
        5_000 + 15 / 16 * 1e9 / 8e10 * 1e9
    )
    assert hops_ns("all-gather", Group(16, 8), DEVICE, 1.0) == 10_000
    assert hops_ns("all-reduce", Group(64, 8), DEVICE, 1.0) == 6 * 10_000
    assert hops_ns("all-reduce", Group(8, 8), DEVICE, 1.0) == 0


@pytest.mark.parametrize("name", list_hardware())
def test_every_known_device_has_its_constants_and_a_plan(name: str) -> None:
    hardware = read_hardware(name)
    constants = read_efficiency(hardware)
    precision = "bf16" if "bf16" in hardware.peak_flops else "fp16"
    step = predict_step(make_workload(gpus=1, precision=precision), hardware)
    assert 0 < constants.product_ratio <= 1
    assert 0 < step.mfu_ratio < 0.9
    assert step.low_ns < step.mid_ns < step.high_ns
