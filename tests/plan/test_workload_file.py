"""A workload file -> what is planned."""

from pathlib import Path
from typing import Any

import pytest

from hotloop.ahead.plan.workload_file import parse_workload, read_model, read_models, read_workload_file
from hotloop.core.errors import UsageError

MODEL = {"layers": 32, "hidden": 4096, "heads": 32, "vocab": 50432, "seq": 2048}
RUN = {"micro_batch": 8, "global_batch": 1024, "precision": "bf16", "recompute": "none", "sharding": "fsdp"}
HARDWARE = {"gpu": "h100-80g-sxm", "count": 64}


def tables(**changes: dict[str, Any]) -> dict[str, Any]:
    """The tables of a sound file with some keys changed."""
    sound: dict[str, dict[str, Any]] = {"model": MODEL, "run": RUN, "hardware": HARDWARE}
    return {name: {**sound.get(name, {}), **changes.get(name, {})} for name in {**sound, **changes}}


@pytest.mark.parametrize("name", list(read_models()))
def test_the_count_of_parameters_is_the_published_one(name: str) -> None:
    # gpt3's and deepseek-v3's are published in billions; BLOOM normalises its embedding, unlike a DecoderShape.
    exact = 0.003 if name in ("gpt3-175b", "deepseek-v3") else 2e-7 if name == "bloom-176b" else 0
    assert read_model(name).params == pytest.approx(read_models()[name]["params"], rel=exact, abs=0)


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(
        '[model]\nname = "gpt2"\nseq = 512\n[run]\nmicro_batch = 4\nglobal_batch = 8\n'
        '[hardware]\ngpu = "a100-80g-sxm"\ncount = 2\nusd_per_hour = 1.5\n[goal]\ntokens = 1e9\n'
    )
    request = read_workload_file(str(file))
    assert (request.name, request.workload.model.layers, request.workload.model.seq) == ("gpt2", 12, 512)
    assert (request.workload.data_ranks, request.workload.micro_batches) == (2, 1)
    assert request.tokens == 1_000_000_000
    assert (request.hardware.prices[0].usd_per_hour, request.hardware.prices[0].provider) == (1.5, "own")


def test_an_own_price_stands_for_all_of_its_kind() -> None:
    hardware = {**HARDWARE, "usd_per_hour": 9, "spot_usd_per_hour": 8.5, "gpu_hours_per_preemption": 100}
    request = parse_workload({**tables(), "hardware": hardware}, "file")
    assert [(p.usd_per_hour, p.kind) for p in request.hardware.prices] == [(9, "on-demand"), (8.5, "spot")]
    assert request.failures.gpu_hours_per_preemption == 100
    assert request.failures.gpu_hours_per_failure == 50_000


def test_what_is_usual_stands_in_for_what_is_not_said() -> None:
    def run(**changes: Any) -> Any:
        return parse_workload(tables(**changes), "file").workload.run

    assert run().sequence_parallel
    assert not run(run={"sharding": "zero1"}).sequence_parallel
    assert run(run={"sharding": "zero1", "sequence_parallel": True}).sequence_parallel
    assert run(run={"sharding": "zero1", "framework": "megatron"}).sequence_parallel
    mpt = {"model": {"name": "mpt-7b"}, "run": RUN, "hardware": HARDWARE}
    assert parse_workload(mpt, "file").workload.run.fused_loss
    assert not parse_workload({**mpt, "run": {**RUN, "fused_loss": False}}, "file").workload.run.fused_loss
    assert not run().fused_loss


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": {"heads": 0}}, "model.heads = 0: give a whole number of 1 or more"),
        ({"model": {"heads": 33}}, "model.heads = 33 does not divide model.hidden = 4096"),
        ({"model": {"layer": 1}}, "unknown key model.layer; did you mean 'layers'"),
        ({"model": {"seq": 2048.5}}, "model.seq = 2048.5"),
        ({"model": {"tied": 1}}, "model.tied = 1: give true or false"),
        ({"model": {"q_rank": 512}}, "model.q_rank = 512 belongs to latent attention: give kv_rank"),
        ({"model": {"kv_rank": 512, "kv_heads": 8}}, "latent attention has keys for every head"),
        ({"run": {"base_weights": "nf4"}}, "weights in 4 bits are not trained; give trainable_params"),
        ({"run": {"base_weights": "int4", "trainable_params": 1}}, "choose one of full, nf4, nf4-dq"),
        ({"model": {"attention": "fast"}}, "choose one of flash, math"),
        ({"run": {"tp": 3, "global_batch": 1008}, "hardware": {"count": 63}}, "run.tp = 3 does not divide model.heads"),
        ({"run": {"pp": 64}}, "run.pp = 64 is more than model.layers = 32"),
        ({"run": {"tp": 128}}, "does not divide hardware.count = 64"),
        ({"run": {"global_batch": 1000}}, "is not a multiple of run.micro_batch x data-parallel ranks = 8 x 64 = 512"),
        ({"run": {"sharding": "zero4"}}, "choose one of ddp, zero1, zero2, zero3, fsdp, hsdp"),
        ({"run": {"precision": "bf15"}}, "choose one of fp32, bf16, pure-bf16, fp16, fp8"),
        ({"run": {"recompute": 1}}, "run.recompute = 1: give a word in quotes"),
        ({"run": {"microbatch": 1}}, "unknown key run.microbatch; did you mean 'micro_batch'"),
        ({"hardware": {"gpu": "h100"}}, "unknown gpu 'h100': choose one of a100-40g-sxm"),
        ({"hardware": {"gpu": 7}}, "hardware.gpu = 7"),
        ({"hardware": {"count": 0}}, "hardware.count = 0"),
        ({"hardware": {"usd_per_hour": -1}}, "hardware.usd_per_hour = -1"),
        ({"hardware": {"usd_per_hour": float("nan")}}, "hardware.usd_per_hour = nan"),
        ({"hardware": {"spot_usd_per_hour": "1"}}, "hardware.spot_usd_per_hour = '1'"),
        ({"hardware": {"storage_bytes_per_s": 0}}, "hardware.storage_bytes_per_s = 0: give a number above 0"),
        ({"hardware": {"restart_s": -1}}, "hardware.restart_s = -1: give a number of 0 or more"),
        ({"hardware": {"usd_per_hour": 1, "spot_usd_per_hour": 1, "price_kind": "spot"}}, "both spot prices"),
        ({"sharing": {}}, "unknown table sharing"),
        ({"hardware": {"price": 2}}, "unknown key hardware.price; did you mean 'price_kind'"),
        ({"hardware": {"price_kind": "cheap"}}, "choose one of on-demand, spot, reserved"),
        ({"goal": {"tokens": 1.5}}, "goal.tokens = 1.5"),
        ({"hardware": {"gpu": "v100-32g"}}, "'bf16': NVIDIA V100 SXM2 32 GB computes only fp32, fp16"),
        ({"run": {"precision": "fp8"}, "hardware": {"gpu": "a100-80g-sxm"}}, "run.precision = 'fp8'"),
    ],
)
def test_nonsense_is_one_clear_error(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_workload(tables(**changes), "file")
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"model": MODEL, "run": RUN}, "the table [hardware] is missing"),
        ({**tables(), "runs": {}}, "unknown table runs; did you mean 'run'"),
        ({**tables(), "model": {"name": "gpt9"}}, "unknown model 'gpt9': choose one of gpt2"),
        ({**tables(), "model": {"layers": 3}}, "model.hidden, model.heads, model.vocab, model.seq missing"),
        ({**tables(), "run": {}}, "run.micro_batch, run.global_batch missing"),
        ({**tables(), "hardware": {"count": 1}}, "hardware.gpu is missing"),
    ],
)
def test_what_is_missing_is_named(content: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_workload(content, "file")
    assert named in str(caught.value)
