"""Laws of a plan's memory: affine in the micro-batch, never falling with size; sharding never costs state memory."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hotloop.ahead.plan.hardware_files import read_hardware
from hotloop.ahead.plan.memory import predict_memory, zero_memory
from hotloop.ahead.plan.planner import find_remedies
from hotloop.core.workload import (
    ATTENTIONS,
    BASE_WEIGHTS,
    OPTIMIZERS,
    PRECISIONS,
    RECOMPUTES,
    SHARDINGS,
    DecoderShape,
    PlannedRun,
    Workload,
)

H100 = read_hardware("h100-80g-sxm")
ROUNDING = 16
"""Bytes by which parts that are rounded one by one may miss their sum."""


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    heads = draw(st.sampled_from([4, 8, 16]))
    experts = draw(st.sampled_from([1, 1, 4]))
    kv_rank = draw(st.sampled_from([None, None, 64]))  # latent attention has no groups of queries
    trained = draw(st.sampled_from([None, None, 10_000]))
    model = DecoderShape(
        layers=draw(st.integers(2, 24)),
        hidden=heads * draw(st.sampled_from([32, 64, 128])),
        heads=heads,
        kv_heads=None if kv_rank else draw(st.sampled_from([None, heads // 2])),
        kv_rank=kv_rank,
        q_rank=draw(st.sampled_from([None, 96])) if kv_rank else None,
        value_width=draw(st.sampled_from([None, 32])) if kv_rank else None,
        vocab=draw(st.sampled_from([1000, 50257, 128256])),
        seq=draw(st.sampled_from([128, 1024, 4096])),
        is_gated=draw(st.booleans()),
        tied=draw(st.booleans()),
        bias=draw(st.booleans()),
        dropout=draw(st.booleans()),
        experts=experts,
        experts_per_token=min(2, experts),
        attention=draw(st.sampled_from(ATTENTIONS)),
    )
    tp, pp, cp = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2]))
    data_ranks = draw(st.sampled_from([1, 2, 8, 64]))
    micro, count = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    run = PlannedRun(
        micro_batch=micro,
        global_batch=micro * count * data_ranks,
        precision=draw(st.sampled_from(PRECISIONS)),
        recompute=draw(st.sampled_from(RECOMPUTES)),
        sharding=draw(st.sampled_from(SHARDINGS)),
        tp=tp,
        pp=pp,
        cp=cp,
        ep=2 if experts > 1 and data_ranks > 1 and draw(st.booleans()) else 1,
        sequence_parallel=draw(st.booleans()),
        optimizer=draw(st.sampled_from(OPTIMIZERS)),
        compiled=draw(st.booleans()),
        fused_loss=draw(st.booleans()),
        trainable_params=trained,
        base_weights=draw(st.sampled_from(BASE_WEIGHTS)) if trained else "full",
        framework=draw(st.sampled_from(["torch", "megatron"])),
    )
    return Workload(model=model, run=run, gpus=tp * pp * cp * data_ranks)


def with_micro_batch(workload: Workload, micro_batch: int) -> Workload:
    """As many micro-batches, of another size."""
    batch = workload.run.global_batch // workload.run.micro_batch * micro_batch
    return replace(workload, run=replace(workload.run, micro_batch=micro_batch, global_batch=batch))


@given(workloads(), st.integers(1, 8))
def test_memory_is_affine_in_the_micro_batch(workload: Workload, step: int) -> None:
    if workload.run.pp > 1:
        workload = replace(
            workload, run=replace(workload.run, pp=1), gpus=workload.gpus // workload.run.pp
        )  # of two stages, which one needs most may change
    first, second, third = (predict_memory(with_micro_batch(workload, 1 + k * step), H100).peak_bytes for k in range(3))
    assert abs((third - second) - (second - first)) <= ROUNDING
    assert second > first


@given(workloads(), st.sampled_from(["layers", "seq", "micro_batch", "global_batch", "vocab", "hidden"]))
def test_memory_never_falls_when_something_grows(workload: Workload, what: str) -> None:
    if what == "micro_batch":
        larger = with_micro_batch(workload, 2 * workload.run.micro_batch)
    elif what == "global_batch":
        larger = replace(workload, run=replace(workload.run, global_batch=2 * workload.run.global_batch))
    elif what == "layers":
        larger = replace(workload, model=replace(workload.model, layers=workload.model.layers + 1))
    else:
        larger = replace(workload, model=replace(workload.model, **{what: 2 * getattr(workload.model, what)}))
    # As many adapters over more layers: the stage that needs most may hold fewer of them.
    moved = 20 * (workload.run.trainable_params or 0)
    assert predict_memory(larger, H100).peak_bytes >= predict_memory(workload, H100).peak_bytes - moved


@given(workloads())
def test_more_sharding_never_needs_more_state_memory(workload: Workload) -> None:
    def states(sharding: str) -> int:
        return predict_memory(replace(workload, run=replace(workload.run, sharding=sharding)), H100).states_bytes

    ladder = [states(one) for one in ("ddp", "zero1", "zero2", "zero3")]
    assert all(later <= earlier + ROUNDING for earlier, later in pairwise(ladder))
    assert states("fsdp") <= states("hsdp") + ROUNDING
    assert states("hsdp") <= states("ddp") + ROUNDING


@given(workloads())
def test_parts_sum_to_the_peak_and_none_is_negative(workload: Workload) -> None:
    found = predict_memory(workload, H100)
    parts = (
        found.params_bytes, found.master_bytes, found.gradients_bytes, found.optimizer_bytes, found.activations_bytes,
        found.logits_bytes, found.buffers_bytes, found.context_bytes,
    )  # fmt: skip
    assert sum(parts) == found.peak_bytes
    assert min(parts) >= 0


@given(workloads())
def test_a_remedy_saves_what_it_says(workload: Workload) -> None:
    before = predict_memory(workload, H100).peak_bytes
    for one in find_remedies(workload, H100):
        assert one.saved_bytes > 0
        assert one.saved_bytes + one.peak_bytes == before


@given(st.integers(1, 10**12), st.integers(1, 4096))
def test_zero_sheds_state_by_stage_and_by_rank(params: int, ranks: int) -> None:
    totals = [row.total_bytes for row in zero_memory(params, ranks)]
    assert totals == sorted(totals, reverse=True)
    assert totals[3] * ranks <= totals[0] * (1 + 1e-9)
    assert all(a >= b for a, b in zip(totals, (r.total_bytes for r in zero_memory(params, 2 * ranks)), strict=True))
