"""Laws of planned time and money: more of a resource never hurts, more work never helps."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hotloop.ahead.plan.cost import (
    Failures,
    daly_interval_s,
    least_waste_ratio,
    pick_price,
    predict_cost,
    waste_ratio,
)
from hotloop.ahead.plan.hardware_files import read_hardware
from hotloop.ahead.plan.time import predict_step
from hotloop.core.hardware import Hardware
from hotloop.core.link_fit import LinkFit
from hotloop.core.workload import DecoderShape, PlannedRun, Workload

A100 = read_hardware("a100-80g-sxm")


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    heads = draw(st.sampled_from([8, 16, 32]))
    experts = draw(st.sampled_from([1, 1, 8]))
    kv_rank = draw(st.sampled_from([None, None, 128]))  # latent attention has no groups of queries
    model = DecoderShape(
        layers=draw(st.sampled_from([4, 12, 32])),
        hidden=heads * draw(st.sampled_from([64, 128])),
        heads=heads,
        vocab=draw(st.integers(1000, 200_000)),
        seq=draw(st.sampled_from([512, 2048, 8192])),
        kv_heads=None if kv_rank else draw(st.sampled_from([None, 8])),
        kv_rank=kv_rank,
        q_rank=draw(st.sampled_from([None, 256])) if kv_rank else None,
        is_gated=draw(st.booleans()),
        experts=experts,
        experts_per_token=min(experts, 2),
        attention=draw(st.sampled_from(["flash", "math"])),
    )
    tp, pp = draw(st.sampled_from([1, 2, 8])), draw(st.sampled_from([1, 2, 4]))
    data_ranks = draw(st.sampled_from([1, 2, 16, 64]))
    micro, count = draw(st.sampled_from([1, 2, 8])), draw(st.integers(1, 16))
    run = PlannedRun(
        micro_batch=micro,
        global_batch=micro * count * data_ranks,
        precision=draw(st.sampled_from(["bf16", "pure-bf16", "fp16", "fp32"])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        sharding=draw(st.sampled_from(["ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"])),
        tp=tp,
        pp=pp,
        offload=draw(st.sampled_from(["none", "optimizer", "parameters", "activations"])),
        compiled=draw(st.booleans()),
        overlap=draw(st.booleans()),
        framework=draw(st.sampled_from(["torch", "megatron"])),
    )
    return Workload(model=model, run=run, gpus=data_ranks * tp * pp)


def step_ns(workload: Workload, hardware: Hardware = A100) -> float:
    return predict_step(workload, hardware).mid_ns


def faster(link: LinkFit, factor: float) -> LinkFit:
    return replace(link, bytes_per_s=link.bytes_per_s * factor)


@given(workloads())
def test_parts_are_never_negative_and_sum_to_the_step(workload: Workload) -> None:
    step = predict_step(workload, A100)
    parts = (step.compute_ns, step.exposed_ns, step.bubble_ns, step.optimizer_ns, step.offload_ns)
    assert all(part >= 0 for part in parts)
    assert math.isclose(sum(parts), step.mid_ns, rel_tol=1e-9)
    assert step.low_ns < step.mid_ns < step.high_ns
    assert 0 < step.mfu_ratio <= step.hfu_ratio < 1


@given(workloads(), st.floats(1.0, 100.0))
def test_more_bandwidth_is_never_slower(workload: Workload, factor: float) -> None:
    now = step_ns(workload) * (1 + 1e-9)
    assert step_ns(workload, replace(A100, memory_bytes_per_s=A100.memory_bytes_per_s * factor)) <= now
    assert step_ns(workload, replace(A100, inside=faster(A100.inside, factor))) <= now
    assert step_ns(workload, replace(A100, between=faster(A100.between, factor))) <= now
    assert step_ns(workload, replace(A100, host_bytes_per_s=A100.host_bytes_per_s * factor)) <= now


@given(workloads(), st.floats(1.0, 100.0))
def test_more_flops_are_never_slower(workload: Workload, factor: float) -> None:
    peaks = {name: peak * factor for name, peak in A100.peak_flops.items()}
    assert step_ns(workload, replace(A100, peak_flops=peaks)) <= step_ns(workload) * (1 + 1e-9)


@given(workloads(), st.integers(2, 4))
def test_more_layers_longer_sequences_and_larger_batches_take_longer(workload: Workload, times: int) -> None:
    model, run, now = workload.model, workload.run, step_ns(workload)
    assert step_ns(replace(workload, model=replace(model, layers=model.layers * times))) > now
    assert step_ns(replace(workload, model=replace(model, seq=model.seq * times))) >= now * (1 - 1e-9)
    assert step_ns(replace(workload, run=replace(run, global_batch=run.global_batch * times))) > now


@given(workloads(), st.integers(1, 10**12), st.integers(1, 10**12))
def test_more_tokens_never_cost_less(workload: Workload, tokens: int, more: int) -> None:
    step, price = predict_step(workload, A100), pick_price(A100)
    few = predict_cost(step, workload, A100, tokens, price=price)
    many = predict_cost(step, workload, A100, tokens + more, price=price)
    assert many.hours >= few.hours
    assert few.usd is not None
    assert many.usd is not None
    assert many.usd >= few.usd
    assert few.compute_hours <= few.hours


@given(st.integers(1, 16_384), st.floats(10, 1e6), st.floats(0, 600), st.floats(0, 3600))
def test_steadier_devices_waste_no_more(gpus: int, hours: float, checkpoint_s: float, restart_s: float) -> None:
    often = Failures(gpu_hours_per_failure=hours, restart_s=restart_s)
    seldom = replace(often, gpu_hours_per_failure=2 * hours)
    few, many = (least_waste_ratio(checkpoint_s, one.mtbf_s(gpus), restart_s) for one in (seldom, often))
    assert 0 <= few <= many + 1e-9 <= 1 + 1e-9


@given(st.floats(100, 1e6), st.floats(1, 50), st.floats(0.2, 5))
def test_no_other_interval_wastes_clearly_less_than_dalys(mtbf_s: float, checkpoint_s: float, factor: float) -> None:
    best = daly_interval_s(checkpoint_s, mtbf_s)
    least = waste_ratio(best, checkpoint_s, mtbf_s, 0)
    # The series ends after its third term: 0.1 % of the wall time where a checkpoint takes half of M.
    assert 1 / (1 - least) <= 1.001 / (1 - waste_ratio(best * factor, checkpoint_s, mtbf_s, 0))
