"""Memory of a planned training, against published formulas and rows."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hotloop.ahead.plan.hardware_files import read_hardware
from hotloop.ahead.plan.memory import (
    ERROR_RATIO,
    QUANTIZED_BYTES,
    QUANTIZED_ERROR_RATIO,
    full_token_bytes,
    heavy_stages,
    in_flight,
    predict_memory,
    stage_params,
)
from hotloop.ahead.plan.workload_file import read_model
from hotloop.core.prediction import MemoryPrediction
from hotloop.core.workload import DecoderShape, PlannedRun, Workload

ROOT = Path(__file__).parents[2]
H100 = read_hardware("h100-80g-sxm")
GPT = DecoderShape(
    layers=48, hidden=6144, heads=64, seq=2048, vocab=51200, bias=True, learned_positions=True, dropout=True,
    attention="math",
)  # fmt: skip
MEGATRON = PlannedRun(micro_batch=4, global_batch=4, precision="fp16", tp=8, framework="megatron")
LLAMA = read_model("llama-3-8b")


def plan(model: DecoderShape = LLAMA, gpus: int = 8, **run: object) -> MemoryPrediction:
    settings: dict[str, object] = {"micro_batch": 1, "global_batch": 64, "sharding": "fsdp", **run}
    return predict_memory(Workload(model=model, run=PlannedRun(**settings), gpus=gpus), H100)  # type: ignore[arg-type]


def test_a_layer_of_gpt_keeps_what_korthikanti_states() -> None:
    # sbh (34 + 5 a s / h), of which 10 h are not split without sequence parallelism.
    found = full_token_bytes(GPT, MEGATRON, has_experts=False)
    assert found.norms + found.inputs == 10 * GPT.hidden
    assert found.attention + found.feed_forward == 24 * GPT.hidden + 5 * GPT.heads * GPT.seq


@pytest.mark.parametrize(
    ("recompute", "sequence_parallel", "gib"),
    # arXiv:2205.05198, figure 1 for 22B: tensor parallel 8, micro-batch 4
    [("none", False, 59.25), ("selective", True, 9.5625)],
)
def test_activations_of_22b(recompute: str, sequence_parallel: bool, gib: float) -> None:
    run = replace(MEGATRON, recompute=recompute, sequence_parallel=sequence_parallel)
    found = predict_memory(Workload(model=GPT, run=run, gpus=8), read_hardware("a100-80g-sxm"))
    assert found.layer_bytes * GPT.layers / 2**30 == pytest.approx(gib, rel=1e-6)


def test_states_follow_sharding() -> None:
    params = LLAMA.params
    assert plan(sharding="ddp").states_bytes == 16 * params
    assert plan(sharding="zero1").states_bytes == pytest.approx(params * (4 + 12 / 8))
    assert plan(sharding="zero2").states_bytes == pytest.approx(params * (2 + 14 / 8))
    assert plan(sharding="fsdp").states_bytes == pytest.approx(params * 16 / 8)
    assert plan(sharding="hsdp", gpus=32).states_bytes == pytest.approx(params * 16 / 8)
    assert plan(sharding="ddp", precision="pure-bf16").states_bytes == 8 * params
    assert plan(sharding="zero1", framework="megatron").states_bytes == pytest.approx(params * (6 + 12 / 8))
    assert plan(sharding="fsdp", cp=2, global_batch=64).states_bytes == pytest.approx(params * 16 / 8)


def test_optimizer_and_offload_take_their_bytes() -> None:
    adam, sgd = plan(sharding="ddp"), plan(sharding="ddp", optimizer="sgd")
    assert adam.optimizer_bytes == 2 * sgd.optimizer_bytes
    assert plan(optimizer="adafactor").optimizer_bytes == 0
    offloaded = plan(sharding="zero2", offload="optimizer")
    assert (offloaded.optimizer_bytes, offloaded.master_bytes) == (0, 0)
    assert offloaded.params_bytes > 0
    assert plan(offload="parameters").states_bytes == 0
    kept, moved = plan(micro_batch=4), plan(micro_batch=4, offload="activations")
    assert moved.activations_bytes < kept.activations_bytes / 8


def test_adapters_need_no_states_of_frozen_weights() -> None:
    found = plan(sharding="ddp", precision="pure-bf16", trainable_params=2_000_000)
    assert found.params_bytes == 2 * (LLAMA.params + 2_000_000)
    assert found.gradients_bytes == pytest.approx(2 * 2_000_000, rel=1e-3)


def test_pipelines_hold_micro_batches_on_the_first_stage() -> None:
    workload = Workload(model=GPT, run=replace(MEGATRON, global_batch=64, pp=4, tp=2), gpus=8)
    first, last = heavy_stages(workload)
    assert (first.layers, last.layers) == (12, 12)
    assert (in_flight(workload.run, 16, first), in_flight(workload.run, 2, first)) == (4, 2)
    assert in_flight(workload.run, 16, last) == 1
    assert in_flight(replace(workload.run, pipeline_chunks=3), 16, first) == 5  # 4 + 3 / 3
    # The last stage holds a copy of the tied embedding.
    assert stage_params(workload, last).ends > GPT.vocab * GPT.hidden / 2


def test_experts_are_shared_out() -> None:
    mixtral = read_model("mixtral-8x7b")
    run = PlannedRun(micro_batch=1, global_batch=8, sharding="ddp", ep=8)
    workload = Workload(model=mixtral, run=run, gpus=8)
    held = stage_params(workload, heavy_stages(workload)[0]).total
    assert held == mixtral.params - mixtral.expert_layers * mixtral.expert_params * 7 / 8


def test_the_loss_and_the_ways_to_make_it_small() -> None:
    eager, fused = plan(), plan(fused_loss=True)
    assert eager.logits_bytes == 14 * LLAMA.vocab * LLAMA.seq
    assert fused.logits_bytes == 4 * LLAMA.vocab * LLAMA.seq
    # torch's parallel loss adds exponentials: 18 bytes an entry, shared by the ranks.
    assert plan(tp=8, gpus=8, global_batch=8).logits_bytes == 18 * LLAMA.vocab * LLAMA.seq // 8


def test_latent_attention_has_the_published_parameters() -> None:
    v3 = read_model("deepseek-v3")
    # arXiv:2412.19437, section 4.2: 671B parameters, of which 37B are active for a token.
    assert (round(v3.params / 1e9), v3.active_params // 10**9) == (671, 37)
    # SimuMax@4dcaae5, docs/b200: one dense layer and three with experts.
    assert read_model("deepseek-v3", layers=4, dense_layers=1).params == 36_958_706_688
    # Of one layer by hand: queries 7168 x 1536 and 1536 x 24576, keys and values 7168 x 576 and 512 x 32768, output.
    by_hand = 7168 * 1536 + 1536 * 24576 + 7168 * 576 + 512 * 32768 + 16384 * 7168 + 1536 + 512
    assert v3.attention_params == by_hand


def test_weights_in_four_bits() -> None:
    # QLoRA, arXiv:2305.14314, section 3: 0.5 bits of scales a parameter, 0.127 with double quantization.
    assert [round((QUANTIZED_BYTES[name] - 0.5) * 8, 3) for name in ("nf4", "nf4-dq")] == [0.5, 0.127]
    adapters = {"precision": "pure-bf16", "trainable_params": 10**7, "sharding": "ddp", "gpus": 1}
    full, packed = plan(**adapters), plan(**adapters, base_weights="nf4")
    assert full.params_bytes == 2 * (LLAMA.params + 10**7)
    ends = LLAMA.embedding_params + LLAMA.head_params
    assert packed.params_bytes == pytest.approx(0.5625 * (LLAMA.params - ends) + 2 * (ends + 10**7), rel=1e-6)
    assert packed.optimizer_bytes == full.optimizer_bytes
    assert packed.buffers_bytes - full.buffers_bytes == 2 * LLAMA.hidden * LLAMA.ffn_width
    shared = plan(**{**adapters, "gpus": 8, "sharding": "fsdp"}, base_weights="nf4")
    assert shared.params_bytes == pytest.approx(packed.params_bytes / 8, rel=1e-6)


def test_the_stated_error_is_the_measured_one() -> None:
    raw = json.loads((ROOT / "benchmarks" / "results" / "plan" / "memory.json").read_text(encoding="utf-8"))
    assert raw["held_out_p90_ratio"] == pytest.approx(ERROR_RATIO, abs=0.01)
    assert len(raw["rows"]) == raw["n"]
    packed = next(one for one in raw["families"] if one["family"] == "litgpt, 4-bit weights")
    assert packed["p90_ratio"] == pytest.approx(QUANTIZED_ERROR_RATIO, abs=0.01)
    adapters = {"precision": "pure-bf16", "trainable_params": 10**7, "sharding": "ddp"}
    assert plan(**adapters, base_weights="nf4").error_ratio == QUANTIZED_ERROR_RATIO


def test_published_rows_are_still_forecast_as_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import plan_memory_rows

    results = plan_memory_rows.forecast_rows()
    raw = json.loads((ROOT / "benchmarks" / "results" / "plan" / "memory.json").read_text(encoding="utf-8"))
    assert [one.predicted for one in results] == [row["predicted"] for row in raw["rows"]]
    summary = plan_memory_rows.summarise(results)
    assert summary["torchtitan"]["worst_ratio"] <= 0.08
    assert summary["BLOOM"]["p90_ratio"] <= 0.10
    assert summary["SimuMax"]["mean_ratio"] <= 0.03
    assert summary["SimuMax, DeepSeek-V3"]["worst_ratio"] <= 0.03
    fits = [one for one in plan_memory_rows.forecast_fits() if one.predicted is not None]
    assert [one for one in fits if one.predicted != one.published] == []
