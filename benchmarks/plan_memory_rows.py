"""Forecast every published memory row and write the prediction next to the published value (docs/plan.md).

The rows are those of benchmarks/published, facts with citations. A row that cannot be forecast has its reason.
A family on which a constant was set is marked as used; error bars come from the others.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date
from typing import Any

import passes

from hotloop.ahead.plan import memory
from hotloop.ahead.plan.hardware_files import read_hardware
from hotloop.ahead.plan.memory import FRAGMENTATION_RATIO, predict_memory, zero_memory
from hotloop.ahead.plan.workload_file import read_model
from hotloop.core.errors import UsageError
from hotloop.core.prediction import MemoryPrediction
from hotloop.core.workload import DecoderShape, PlannedRun, Workload

PUBLISHED = passes.ROOT / "benchmarks" / "published"
GB, GIB = 1e9, 2.0**30

SUSPECT = {
    "L634": "65 GB at micro-batch 2 against 56 GB at 4 elsewhere: a suspect row",
    "L669": "its columns look swapped",
    "L648": "its data-parallel size is misprinted",
    "L658": "the text and the table disagree on the batch",
    "L659": "the text and the table disagree on the batch",
    "L660": "the text and the table disagree on the batch",
}


@dataclass(frozen=True)
class RowResult:
    """One published row, and what was predicted for it; bytes are None where it could not be forecast."""

    family: str
    source: str
    model: str
    config: str
    metric: str
    published: float
    unit: str
    predicted: float | None
    error_ratio: float | None
    is_fitted: bool
    """A constant of the model was set on rows of this family."""
    note: str = ""


@dataclass(frozen=True)
class FitResult:
    """One published run that fitted, or did not, and the forecast; None where there is none."""

    family: str
    source: str
    model: str
    config: str
    published: bool
    predicted: bool | None
    peak_ratio: float | None
    """Of the device's memory."""
    note: str = ""


def forecast_rows() -> list[RowResult]:
    """Every memory row of the published tables with its forecast."""
    return [result for row in _read() for result in _forecast(row)]


def _read() -> Iterator[dict[str, str]]:
    for name in ("published.tsv", "simumax.tsv", "more.tsv"):
        with (PUBLISHED / name).open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                if "memory" in row["metric"] and row["metric"] != "fits_in_memory":
                    yield row


def _forecast(row: Mapping[str, str]) -> Iterator[RowResult]:
    family, forecast = _find_family(row["source"])
    if "bnb" in row["precision"]:
        family += ", 4-bit weights"
    if "DeepSeek" in row["model"]:
        family += ", DeepSeek-V3"
    factor = GIB if row["unit"].startswith(("GiB", "GB=2^30", "GB (as printed; torchtitan")) else GB
    note, predicted = "", None
    try:
        predicted, note = forecast(row)
    except (LookupError, UsageError) as error:
        note = str(error.args[0])
    published = float(row["value"])
    unit = "%" if row["unit"].startswith("%") else "GiB" if factor == GIB else "GB"
    if predicted is not None and unit != "%":
        predicted /= factor
    yield RowResult(
        family=family,
        source=row["source"],
        model=row["model"],
        config=_describe(row),
        metric=row["metric"],
        published=published,
        unit=unit,
        predicted=None if predicted is None else round(predicted, 4),
        error_ratio=None if predicted is None else round(predicted / published - 1, 5),
        is_fitted=family in FITTED,
        note=note,
    )


def _describe(row: Mapping[str, str]) -> str:
    names = ("hardware", "gpus", "dp", "tp", "pp", "seq", "micro_batch", "precision", "recompute", "sharding")
    return " ".join(f"{name}={row[name]}" for name in names if row[name])


FITTED = ("SimuMax",)
"""Gated layers under Megatron (14 h + 6 kv + 6 ffn) were chosen on its rows; the allocator's share is their mean."""


def _find_family(source: str) -> tuple[str, Any]:
    for start, family, forecast in (
        ("ZeRO", "ZeRO", _zero),
        ("deepspeed", "DeepSpeed estimator", _deepspeed),
        ("Korthikanti", "Korthikanti", _korthikanti),
        ("bigscience", "BLOOM", _bloom),
        ("MooreThreads", "SimuMax", _simumax),
        ("pytorch/torchtitan", "torchtitan", _torchtitan),
        ("pytorch/ao", "torchao", _torchtitan),
        ("InternLM", "InternEvo", _internevo),
        ("Lightning-AI", "litgpt", _litgpt),
    ):
        if source.startswith(start):
            return family, forecast
    raise LookupError(f"no family for {source}")


def _int(row: Mapping[str, str], key: str) -> int:
    return int(float(row[key]))


def _zero(row: Mapping[str, str]) -> tuple[float, str]:
    stage = 0 if "ZeRO-0" in row["sharding"] else int(row["sharding"][5])
    return zero_memory(float(row["params"]), _int(row, "dp"))[stage].total_bytes, ""


def _deepspeed(row: Mapping[str, str]) -> tuple[float, str]:
    raise LookupError("another tool's estimate with offload and its own buffers, not a measurement")


def _plan(model: DecoderShape, run: PlannedRun, gpus: int, gpu: str) -> MemoryPrediction:
    workload = Workload(model=model, run=run, gpus=gpus)
    return predict_memory(workload, read_hardware(gpu))


def _korthikanti(row: Mapping[str, str]) -> tuple[float, str]:
    model = DecoderShape(
        layers=_int(row, "layers"), hidden=_int(row, "hidden"), heads=_int(row, "heads"), seq=2048, vocab=51200,
        bias=True, learned_positions=True, dropout=True, attention="math",
    )  # fmt: skip
    chunks = {"Megatron-175B": 3, "Megatron-530B": 3}.get(row["model"], 1)
    words = row["recompute"]

    def plan(recompute: str, sequence_parallel: bool) -> Any:
        run = PlannedRun(
            micro_batch=_int(row, "micro_batch"), global_batch=_int(row, "global_batch"), precision="fp16",
            recompute=recompute, sharding="ddp", tp=_int(row, "tp"), pp=_int(row, "pp"), framework="megatron",
            sequence_parallel=sequence_parallel, pipeline_chunks=chunks,
        )  # fmt: skip
        return _plan(model, run, _int(row, "gpus"), "a100-80g-sxm")

    note = "interleaved over 3 chunks (the paper's table 3)" if chunks > 1 else ""
    if row["metric"] == "model_states_memory":
        return float(plan("none", False).states_bytes), note
    recompute = "selective" if "selective" in words else "full" if "full" in words else "none"
    one = plan(recompute, "sequence-parallel" in words)
    layers = -(-model.layers // _int(row, "pp"))
    flight = memory.in_flight(
        PlannedRun(micro_batch=1, global_batch=1, pp=_int(row, "pp"), pipeline_chunks=chunks), 10**9,
        memory.PipelineStage(layers, 0, True, _int(row, "pp") == 1),
    )  # fmt: skip
    kept = one.layer_bytes * layers * flight
    if row["metric"] == "activation_memory":
        return kept, note
    base = plan("none", False).layer_bytes * layers * flight
    return kept / base * 100, note


def _bloom(row: Mapping[str, str]) -> tuple[float, str]:
    found, note = _plan_bloom(row)
    return float(found.peak_bytes), note


def _plan_bloom(row: Mapping[str, str]) -> tuple[MemoryPrediction, str]:
    line = re.search(r"L\d+", row["source"])
    if line and line.group() in SUSPECT:
        raise LookupError(f"left out by name: {SUSPECT[line.group()]}")
    hidden, params = _int(row, "hidden"), float(row["params"])
    note = ""
    if row["layers"]:
        layers = _int(row, "layers")
    else:
        # Only the parameters are stated: 12 h^2 a layer, and the embedding.
        layers = round((params - 250_000 * hidden) / (12 * hidden**2))
        note = f"{layers} layers from the parameters"
    heads = _int(row, "heads") if row["heads"] else hidden // 128
    if hidden % heads or heads % _int(row, "tp"):
        heads = _int(row, "tp") * 8
    model = DecoderShape(
        layers=layers, hidden=hidden, heads=heads, head_width=max(1, hidden // heads), seq=2048, vocab=250_000,
        bias=True, dropout=True, attention="math",
    )  # fmt: skip
    data = _int(row, "dp")
    micro = _int(row, "micro_batch")
    batch = max(1, _int(row, "global_batch") // (micro * data)) * micro * data
    run = PlannedRun(
        micro_batch=micro, global_batch=batch, precision="bf16", recompute="full",
        sharding="ddp" if "ZeRO-0" in row["sharding"] else "zero1", tp=_int(row, "tp"), pp=_int(row, "pp"),
        sequence_parallel=False, framework="megatron" if "ZeRO-0" in row["sharding"] else "torch",
    )  # fmt: skip
    return _plan(model, run, _int(row, "gpus"), "a100-80g-sxm"), note


def _simumax(row: Mapping[str, str]) -> tuple[float, str]:
    found = dict(re.findall(r"(SP|CP|EP|VP)=(\d+)", row["sharding"]))
    layers = re.search(r"(\d+)layers", row["model"])
    shape = {"layers": int(layers.group(1)) if layers else 80, "seq": _int(row, "seq")}
    is_latent = "DeepSeek" in row["model"]
    model = read_model("deepseek-v3", dense_layers=1, **shape) if is_latent else read_model("llama-3-70b", **shape)
    run = PlannedRun(
        micro_batch=_int(row, "micro_batch"), global_batch=_int(row, "global_batch"), precision="bf16",
        recompute="none", sharding="zero1", tp=_int(row, "tp"), pp=_int(row, "pp"), cp=int(found["CP"]),
        ep=int(found["EP"]), sequence_parallel=found["SP"] == "1", framework="megatron", fused_loss=True,
    )  # fmt: skip
    workload = Workload(model=model, run=run, gpus=_int(row, "gpus"))
    if row["metric"] == "peak_memory_last_stage":
        last = memory.heavy_stages(workload)[-1]
        predicted = memory.predict_stage(workload, read_hardware("b200"), last)
    else:
        predicted = predict_memory(workload, read_hardware("b200"))
    allocated = predicted.peak_bytes - predicted.context_bytes
    return allocated * (1 + FRAGMENTATION_RATIO if "reserved" in row["metric"] else 1), ""


FUSED_SINCE = "the loss is compiled with the model: pytorch/torchtitan turned that off on 2024-12-18 and on again later"


def _torchtitan(row: Mapping[str, str]) -> tuple[float, str]:
    model, run, gpu, note = _read_torchtitan(row)
    predicted = _plan(model, run, _int(row, "dp") * run.model_ranks, gpu)
    return (predicted.peak_bytes - predicted.context_bytes) * (1 + FRAGMENTATION_RATIO), note


def _read_torchtitan(row: Mapping[str, str]) -> tuple[DecoderShape, PlannedRun, str, str]:
    if not row["recompute"]:
        raise LookupError("its recompute is not stated")
    name = "llama-3-405b" if "405B" in row["model"] else "llama-3-70b" if "70B" in row["model"] else "llama-3-8b"
    words = row["precision"] + row["sharding"]
    cp = re.search(r"CP(\d+)", row["sharding"])
    pp, tp = _int(row, "pp"), _int(row, "tp")
    local = _int(row, "micro_batch")
    batch = _int(row, "global_batch") if row["global_batch"] else local * _int(row, "dp")
    is_fused = "h200" in row["source"] or "B200" in row["hardware"]
    run = PlannedRun(
        # torchtitan splits a rank's batch into as many micro-batches as there are stages.
        micro_batch=max(1, local // pp), global_batch=batch, precision="bf16",
        recompute="selective" if "selective" in row["recompute"] else "full", sharding="fsdp", tp=tp, pp=pp,
        cp=int(cp.group(1)) if cp else 1, compiled="compile" in words, fused_loss=is_fused,
    )  # fmt: skip
    model = read_model(name, seq=_int(row, "seq"))
    gpu = "h200" if "H200" in row["hardware"] else "b200" if "B200" in row["hardware"] else "h100-80g-sxm"
    return model, run, gpu, FUSED_SINCE if is_fused else ""


def _internevo(row: Mapping[str, str]) -> tuple[float, str]:
    # configs/7B_sft.py of that tag: llama-like, mlp_ratio 8/3, no tied embedding.
    model = DecoderShape(
        layers=32, hidden=4096, heads=32, ffn=11008, is_gated=True, vocab=103168, seq=_int(row, "seq"), tied=False,
        bias=False,
    )  # fmt: skip
    run = PlannedRun(
        micro_batch=1, global_batch=_int(row, "global_batch"), precision="bf16", recompute="full",
        sharding="fsdp" if row["sharding"] == "FSDP" else "zero1", tp=_int(row, "tp"), pp=_int(row, "pp"),
    )  # fmt: skip
    return float(_plan(model, run, _int(row, "gpus"), "a100-80g-sxm").peak_bytes), "definition of memory not stated"


def _litgpt(row: Mapping[str, str]) -> tuple[float, str]:
    base = re.search(r"bnb\.([\w-]+)", row["precision"])
    trained = re.search(r"trainable (\d+)", row["precision"])
    is_phi = row["model"].startswith("phi")
    model = DecoderShape(
        layers=_int(row, "layers"), hidden=_int(row, "hidden"), heads=_int(row, "heads"), seq=_int(row, "seq"),
        vocab=_int(row, "vocab"), bias=True, tied=False, dropout=False,
    )  # fmt: skip
    ranks = _int(row, "dp")
    micro = _int(row, "micro_batch")
    run = PlannedRun(
        micro_batch=micro, global_batch=_int(row, "global_batch") // (micro * ranks) * micro * ranks,
        precision="pure-bf16", recompute="full" if row["recompute"] == "full" else "none",
        sharding="fsdp" if ranks > 1 else "ddp", trainable_params=int(trained.group(1)) if trained else None,
        base_weights=base.group(1) if base else "full",
    )  # fmt: skip
    predicted = _plan(model, run, ranks, "a100-40g-sxm")
    return float(predicted.peak_bytes - predicted.context_bytes), "phi-1.5" if is_phi else ""


def forecast_fits() -> list[FitResult]:
    """Every published statement that a run fitted, or did not, with the forecast."""
    with (PUBLISHED / "published.tsv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["metric"] == "fits_in_memory"]
    return [_forecast_fit(row) for row in rows]


def _forecast_fit(row: Mapping[str, str]) -> FitResult:
    family = "llm-foundry" if row["source"].startswith("mosaicml") else _find_family(row["source"])[0]
    found: MemoryPrediction | None = None
    note = ""
    try:
        if family == "llm-foundry":
            found = _foundry(row)
        elif family == "BLOOM":
            found = _plan_bloom(row)[0]
        else:
            model, run, gpu, note = _read_torchtitan(row)
            room = re.search(r"(\d+)GB", row["hardware"])
            device = read_hardware(gpu)
            if room:
                device = replace(device, memory_bytes=int(room.group(1)) * 10**9)
            found = predict_memory(Workload(model=model, run=run, gpus=_int(row, "gpus")), device)
    except (LookupError, UsageError) as error:
        note = str(error.args[0])
    return FitResult(
        family=family,
        source=row["source"],
        model=row["model"],
        config=_describe(row),
        published=row["value"] == "1",
        predicted=None if found is None else found.fits,
        peak_ratio=None if found is None else round(found.peak_bytes / found.capacity_bytes, 4),
        note=note,
    )


def _foundry(row: Mapping[str, str]) -> MemoryPrediction:
    # MPT: biases, learned positions, a fused cross entropy (llm-foundry's default), attention without the score matrix.
    model = DecoderShape(
        layers=_int(row, "layers"), hidden=_int(row, "hidden"), heads=_int(row, "heads"), seq=_int(row, "seq"),
        vocab=50368, bias=True, learned_positions=True,
    )  # fmt: skip
    run = PlannedRun(
        micro_batch=_int(row, "micro_batch"), global_batch=_int(row, "global_batch"), fused_loss=True,
        recompute="full" if row["recompute"] == "full" else "none",
        sharding="fsdp" if "FULL" in row["sharding"] else "zero2",
    )  # fmt: skip
    gpu = "a100-40g-sxm" if "40GB" in row["hardware"] else "a100-80g-sxm"
    return _plan(model, run, _int(row, "gpus"), "h100-80g-sxm" if row["hardware"].startswith("H100") else gpu)


def summarise(results: list[RowResult]) -> dict[str, dict[str, Any]]:
    """Of each family: rows, mean and 90th percentile of the size of the error."""
    found: dict[str, dict[str, Any]] = {}
    for family in dict.fromkeys(one.family for one in results):
        sizes = sorted(abs(one.error_ratio) for one in results if one.family == family and one.error_ratio is not None)
        left_out = sum(one.family == family and one.error_ratio is None for one in results)
        found[family] = {
            "n": len(sizes),
            "left_out": left_out,
            "mean_ratio": round(sum(sizes) / len(sizes), 5) if sizes else None,
            "p90_ratio": round(_percentile(sizes, 0.9), 5) if sizes else None,
            "worst_ratio": sizes[-1] if sizes else None,
            "is_fitted": family in FITTED,
        }
    return found


def _percentile(ordered: list[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * len(ordered) * 1000) // 1000) - 1))]


NOT_COUNTED = ("ZeRO", "Korthikanti", "InternEvo", "SimuMax, DeepSeek-V3", "litgpt, 4-bit weights")
"""Formulas that this one repeats; a memory whose definition is not stated; rows of software whose other rows set a
constant; weights whose forecasts have an error of their own."""


def held_out_p90(results: list[RowResult]) -> float:
    """90th percentile of the error, over what was measured, defined and used to set no constant."""
    counted = (one for one in results if not one.is_fitted and one.family not in NOT_COUNTED)
    return _percentile(sorted(abs(one.error_ratio) for one in counted if one.error_ratio is not None), 0.9)


NAMES = {
    "torchtitan": "torchtitan, Llama 3 8B and 405B, 8 to 512 GPUs",
    "BLOOM": "BLOOM, 177B to 205B, 8 to 384 A100",
    "SimuMax": "SimuMax, Llama 3 70B in 12 layers on B200 (set a constant)",
    "SimuMax, DeepSeek-V3": "SimuMax, DeepSeek-V3 in 4 layers on B200",
    "torchao": "torchao, Llama 3 8B on H100 and B200",
    "litgpt": "litgpt, adapters on 1 and 2 A100",
    "litgpt, 4-bit weights": "litgpt, the same on 1 A100 with weights in 4 bits (all too low, why is not known)",
    "InternEvo": "InternEvo 7B on 3 to 6 A800 (its page does not define memory)",
}


def draw_passage(table: Mapping[str, Any]) -> str:
    """What docs/plan.md says of the rows: the errors of each family, and of what fitted."""
    families = {one["family"]: one for one in table["families"]}
    lines = ["| rows | n | mean error | 90 % within |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {one['n']} | {one['mean_ratio'] * 100:.1f} % | {one['p90_ratio'] * 100:.1f} % |"
        for name, one in ((name, families[family]) for family, name in NAMES.items())
    ]
    right = f"{table['fits_right']} of {table['fits_judged']} were forecast right"
    lines += ["", f"Of the published statements that a run fitted into its memory or did not, {right}."]
    return "\n".join(lines)


def main() -> None:
    results, fits = forecast_rows(), forecast_fits()
    judged = [one for one in fits if one.predicted is not None]
    content = {
        "benchmark": "plan_memory_rows",
        "machine": "none: formulas, no measurement here",
        "commit": passes.describe_commit(),
        "date": date.today().isoformat(),
        "n": len(results),
        "held_out_p90_ratio": held_out_p90(results),
        "fits_right": sum(one.predicted == one.published for one in judged),
        "fits_judged": len(judged),
        "families": [{"family": family, **row} for family, row in summarise(results).items()],
        "rows": [asdict(one) for one in results],
        "fits": [asdict(one) for one in fits],
    }
    (passes.RESULTS / "plan" / "memory.json").write_text(passes.draw_raw(content), encoding="utf-8")
    print(draw_passage(content))


if __name__ == "__main__":
    main()
