"""What would save memory, and in which order it is told."""

from dataclasses import replace

import pytest

from hotloop.ahead.plan.hardware_files import read_hardware
from hotloop.ahead.plan.memory import predict_memory
from hotloop.ahead.plan.planner import find_remedies
from hotloop.ahead.plan.workload_file import read_model
from hotloop.core.hardware import Hardware
from hotloop.core.prediction import StepPrediction
from hotloop.core.workload import PlannedRun, Workload

H100 = read_hardware("h100-80g-sxm")
LLAMA_7B = read_model("llama-2-7b")
TOO_LARGE = Workload(model=LLAMA_7B, run=PlannedRun(micro_batch=16, global_batch=1024, sharding="fsdp"), gpus=64)


def slow_recompute(workload: Workload, hardware: Hardware) -> StepPrediction:
    """A step that takes a third longer with recompute, twice as long with offload, and a little with small batches."""
    run = workload.run
    factor = {"none": 1.0, "selective": 1.1, "full": 1.33}[run.recompute] * (2 if run.offload != "none" else 1)
    ns = workload.tokens_per_step * factor * (1 + 0.02 * 16 / run.micro_batch)
    return StepPrediction(
        low_ns=ns, mid_ns=ns, high_ns=ns, compute_ns=ns, exposed_ns=0, bubble_ns=0, optimizer_ns=0, offload_ns=0,
        tokens_per_s_per_gpu=1, mfu_ratio=0.4, hfu_ratio=0.4, basis="formula",
    )  # fmt: skip


def test_what_fits_comes_first_and_is_the_mildest_of_its_kind() -> None:
    assert not predict_memory(TOO_LARGE, H100).fits
    remedies = find_remedies(TOO_LARGE, H100)
    assert [one.fits for one in remedies] == sorted((one.fits for one in remedies), reverse=True)
    by_id = {one.id: one for one in remedies}
    assert len(by_id) == len(remedies)
    micro = by_id["accumulation"].changes["run.micro_batch"]
    assert isinstance(micro, int)
    twice = replace(TOO_LARGE, run=replace(TOO_LARGE.run, micro_batch=2 * micro))
    assert by_id["accumulation"].fits
    assert not predict_memory(twice, H100).fits
    assert {"accumulation", "batch", "recompute", "offload", "loss", "precision"} <= set(by_id)
    assert by_id["batch"].numerics == "lossy"


def test_time_lost_ranks_those_that_fit() -> None:
    remedies = find_remedies(TOO_LARGE, H100, slow_recompute)
    fitting = [one for one in remedies if one.fits and one.numerics != "lossy"]
    assert [one.slower_ratio for one in fitting] == sorted(one.slower_ratio or 0 for one in fitting)
    offload = next(one for one in fitting if one.id == "offload")
    assert offload.slower_ratio == pytest.approx(1.0)
    assert fitting.index(offload) > 0


def test_remedies_are_combined_where_none_suffices() -> None:
    model = read_model("llama-2-13b")
    run = PlannedRun(micro_batch=8, global_batch=64, sharding="ddp", precision="fp32", optimizer="adamw")
    remedies = find_remedies(Workload(model=model, run=run, gpus=8), H100)
    assert remedies[0].id == "together"
    assert remedies[0].fits
    assert len(remedies[0].changes) >= 2
    assert not any(one.fits for one in remedies[1:])


def test_only_what_can_be_changed_is_offered() -> None:
    run = PlannedRun(micro_batch=1, global_batch=1, sharding="ddp", recompute="full", fused_loss=True)
    offered = {one.id for one in find_remedies(Workload(model=LLAMA_7B, run=run, gpus=1), H100)}
    assert not offered & {"accumulation", "batch", "recompute", "loss", "sharding", "attention", "tensor-parallel"}
