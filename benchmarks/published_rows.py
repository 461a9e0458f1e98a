"""The published rows of benchmarks/published that state a speed -> workloads, hardware and what was published."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hotloop.ahead.plan.hardware_files import read_hardware
from hotloop.ahead.plan.time import hardware_flops_per_token
from hotloop.ahead.plan.workload_file import read_model
from hotloop.core.errors import UsageError
from hotloop.core.hardware import Hardware
from hotloop.core.prediction import StepPrediction
from hotloop.core.workload import DecoderShape, PlannedRun, Workload

FOLDER = Path(__file__).parent / "published"
SPEEDS = ("mfu", "hfu", "throughput", "iteration_time", "model_tflops_per_gpu", "hw_tflops_per_gpu")
SUSPECT = (
    "BLOOM L648",
    "BLOOM L658",
    "BLOOM L659",
    "BLOOM L660",
    "BLOOM L669",
)


A100_40, A100_80, A100_PCIE, H100, H200, B200 = map(
    read_hardware, ("a100-40g-sxm", "a100-80g-sxm", "a100-80g-pcie", "h100-80g-sxm", "h200", "b200")
)


def between(hardware: Hardware, gbytes_per_s: float) -> Hardware:
    """With another network: GB/s between nodes, of one device's share."""
    return replace(hardware, between=replace(hardware.between, bytes_per_s=gbytes_per_s * 1e9))


SLOW_A100 = between(A100_80, 6.25)
"""Four links of 100 Gbit/s a node, as the pages of these rows say."""
VTRAIN_A100 = between(A100_80, 12.5)
"""Four links of 200 Gbit/s a node."""
FMS_H100 = between(H100, 12.5)
TITAN_H100 = replace(H100, name="H100 96 GB HBM2e 500 W", memory_bytes_per_s=2400e9)
"""Its page states HBM2e and a lower power limit; the bandwidth of five HBM2e stacks is assumed."""
GB200 = replace(B200, name="GB200", gpus_per_node=64, peak_flops={**B200.peak_flops, "bf16": 2450e12, "fp8": 4900e12})
GB300 = replace(GB200, name="GB300")
"""Dense peaks of NVIDIA's data sheets; 64 of a rack's 72 devices make one domain of NVLink."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published speed and the workload that reached it."""

    source: str
    group: str
    family: str
    hardware: Hardware
    workload: Workload
    metric: str
    value: float
    unit: str

    @property
    def key(self) -> str:
        return f"{self.source}|{self.metric}|{self.workload!r}"

    def predicted(self, step: StepPrediction) -> float:
        """In the row's unit."""
        model, run = self.workload.model, self.workload.run
        if self.metric == "iteration_time":
            return step.mid_ns / (1e6 if self.unit.startswith("ms") else 1e9)
        if self.metric == "throughput":
            return step.tokens_per_s_per_gpu
        if self.metric == "mfu":
            return step.mfu_ratio * 100
        if self.metric == "hfu":
            return step.hfu_ratio * 100
        flops = hardware_flops_per_token(model, run.recompute if self.metric == "hw_tflops_per_gpu" else "none")
        return step.tokens_per_s_per_gpu * flops / 1e12

    def time_ratio(self, step: StepPrediction) -> float:
        """Predicted time over published."""
        ratio = self.predicted(step) / self.value
        return ratio if self.metric == "iteration_time" else 1 / ratio


@dataclass(frozen=True)
class Skipped:
    """A row that was left out, by name, and why."""

    source: str
    metric: str
    why: str


def read_rows() -> tuple[list[Row], list[Skipped]]:
    """All rows that state a speed: those that a workload can say, and those left out."""
    rows: list[Row] = []
    skipped: list[Skipped] = []
    for name in ("published", "simumax", "more"):
        with (FOLDER / f"{name}.tsv").open(encoding="utf-8") as file:
            for cells in csv.DictReader(file, delimiter="\t"):
                if cells["metric"] in SPEEDS:
                    try:
                        rows.append(_read(cells))
                    except (UsageError, LookupError, ValueError) as error:
                        skipped.append(Skipped(cells["source"], cells["metric"], str(error)))
    return rows, skipped


MAKERS: list[tuple[str, Callable[[dict[str, str]], Row]]] = []


def maker(mark: str) -> Callable[[Callable[[dict[str, str]], Row]], Callable[[dict[str, str]], Row]]:
    def add(function: Callable[[dict[str, str]], Row]) -> Callable[[dict[str, str]], Row]:
        MAKERS.append((mark, function))
        return function

    return add


def _read(cells: dict[str, str]) -> Row:
    source = cells["source"]
    for mark, make in MAKERS:
        if mark in source:
            return make(cells)
    raise LookupError("the model's shape or the run is not stated")


def _shape(cells: dict[str, str], **more: object) -> DecoderShape:
    values = {name: int(cells[name]) for name in ("layers", "hidden", "heads", "vocab", "seq") if cells[name]}
    return DecoderShape(**{**values, **more})  # type: ignore[arg-type]


LLAMA = {8030261248: (8, 14336), 70553706496: (8, 28672), 405853388800: (8, 53248), 34000000000: (8, 22016),
         6738415616: (32, 11008), 13015864320: (40, 13824)}  # fmt: skip


def _llama(cells: dict[str, str]) -> DecoderShape:
    kv, ffn = LLAMA[int(cells["params"])]
    return _shape(cells, kv_heads=kv, ffn=ffn, is_gated=True, tied=False)


def _row(
    cells: dict[str, str], group: str, hardware: Hardware, model: DecoderShape, family: str | None = None, **run: object
) -> Row:
    numbers = {name: int(cells[name]) for name in ("tp", "pp", "micro_batch", "global_batch") if cells[name]}
    planned = {**numbers, **run}
    workload = Workload(model=model, run=PlannedRun(**planned), gpus=int(cells["gpus"]))
    return Row(
        source=cells["source"], group=group, family=family or cells["model"], hardware=hardware, workload=workload,
        metric=cells["metric"], value=float(cells["value"]), unit=cells["unit"],
    )  # fmt: skip


@maker("llm-foundry")
def _foundry(cells: dict[str, str]) -> Row:
    hardware = {"H100-80GB": H100, "A100-80GB": A100_80, "A100-40GB": A100_40}[cells["hardware"]]
    precision = "fp8" if "fp8" in cells["precision"] else "pure-bf16" if "PURE" in cells["precision"] else "bf16"
    sharding = "zero2" if "GRAD_OP" in cells["sharding"] else "fsdp"
    model = _shape(cells, learned_positions=True, bias=True)
    # The loss of MPT's configuration is the fused one by default.
    row = _row(cells, "llm-foundry", hardware, model, precision=precision, recompute=cells["recompute"],
               sharding=sharding, fused_loss=True)  # fmt: skip
    if precision == "fp8":
        return replace(row, group="llm-foundry fp8")
    return row


def _megatron_2021(cells: dict[str, str]) -> DecoderShape:
    return _shape(cells, attention="math", dropout=True, bias=True, learned_positions=True)


@maker("Korthikanti 2022 (arXiv:2205.05198) Table 5")
def _korthikanti(cells: dict[str, str]) -> Row:
    full = cells["recompute"] == "full"
    # Interleaved in three parts: section 6.
    chunks = 3 if "175B" in cells["model"] or "530B" in cells["model"] else 1
    return _row(cells, "korthikanti", A100_80, _megatron_2021(cells),
                precision="fp16", recompute="full" if full else "selective", sequence_parallel=not full,
                pipeline_chunks=chunks, framework="megatron", overlap=False, fused_loss=True)  # fmt: skip


@maker("Narayanan 2021")
def _narayanan(cells: dict[str, str]) -> Row:
    heads = {3072: 32, 6144: 48, 10240: 80, 12288: 96, 20480: 128}[int(cells["hidden"])]
    cells = {**cells, "heads": str(heads), "micro_batch": cells["micro_batch"] or "1"}
    return _row(cells, "narayanan", A100_80, _megatron_2021(cells),
                precision="fp16", recompute="full", sequence_parallel=False, framework="megatron", overlap=False,
                fused_loss=True)  # fmt: skip


@maker("vTrain")
def _vtrain(cells: dict[str, str]) -> Row:
    cells = {**cells, "vocab": cells["vocab"] or "51200"}
    group = "vtrain multi-node" if "multi" in cells["source"] else "vtrain single-node"
    return _row(cells, group, VTRAIN_A100, _megatron_2021(cells),
                family=f"GPT {cells['layers']} x {cells['hidden']}", precision="fp16", recompute="full",
                sequence_parallel=False, framework="megatron", overlap=False, fused_loss=True)  # fmt: skip


@maker("bigscience")
def _bloom(cells: dict[str, str]) -> Row:
    line = re.search(r"L(\d+)", cells["source"])
    if line and f"BLOOM L{line[1]}" in SUSPECT:
        raise ValueError("suspect: contradicts its own page")
    hidden, params = int(cells["hidden"]), float(cells["params"])
    heads = cells["heads"] or str({12288: 96, 13312: 104, 13824: 96, 14336: 112, 14400: 96}[hidden])
    layers = cells["layers"] or str(round((params - 250000 * hidden) / 12 / hidden**2))
    cells = {**cells, "heads": heads, "layers": layers}
    model = _shape(cells, attention="math", bias=True)
    return _row(cells, "bloom", SLOW_A100, model, precision="bf16", recompute="full",
                sharding="zero1", sequence_parallel=False, framework="megatron", overlap=False,
                fused_loss=True)  # fmt: skip


@maker("fms-fsdp")
def _fms(cells: dict[str, str]) -> Row:
    hardware = SLOW_A100 if "A100" in cells["hardware"] else FMS_H100
    return _row(cells, "fms-fsdp", hardware, _llama(cells), precision="pure-bf16", compiled=True,
                recompute=cells["recompute"], sharding="hsdp" if "HSDP" in cells["sharding"] else "fsdp")  # fmt: skip


@maker("torchtitan")
def _titan(cells: dict[str, str]) -> Row:
    where = cells["hardware"]
    if "A100" in where:
        hardware = A100_80
    elif "H200" in where:
        hardware = H200
    elif "B200" in where or "Blackwell" in where:
        hardware = B200
    elif "HBM2e" in where:
        hardware = TITAN_H100
    else:
        hardware = H100
    low = re.search("float8|mxfp8|fp8|tensorwise|rowwise", cells["precision"].lower() + cells["sharding"])
    if "NVFP4" in cells["precision"]:
        raise ValueError("4-bit products")
    cp = re.search(r"CP(\d+)", cells["sharding"])
    recompute = "full" if cells["recompute"] == "full" else "selective" if cells["recompute"] else "none"
    compiled = "compile" in cells["precision"] or "compile" in cells["sharding"]
    if int(cells["pp"]) > 1:
        # The page's batch is a rank's, which the pipeline cuts into single sequences.
        cells = {**cells, "micro_batch": "1"}
    return _row(cells, "torchtitan", hardware, _llama(cells), precision="fp8" if low else "bf16", compiled=compiled,
                recompute=recompute, sharding="fsdp", cp=int(cp[1]) if cp else 1)  # fmt: skip


@maker("torchao")
def _torchao(cells: dict[str, str]) -> Row:
    return replace(_titan(cells), group="torchao")


@maker("nanoGPT")
def _nano(cells: dict[str, str]) -> Row:
    return _row(cells, "nanoGPT", A100_40, _shape(cells, attention="math"), compiled="compile" in cells["precision"])


@maker("llm.c")
def _llmc(cells: dict[str, str]) -> Row:
    cells = {**cells, "micro_batch": "32"}
    return _row(cells, "llm.c", A100_80, _shape(cells), compiled=True, precision="pure-bf16", sharding="zero1",
                fused_loss=True)  # fmt: skip


@maker("SimuMax")
def _simumax(cells: dict[str, str]) -> Row:
    hardware = B200 if "B200" in cells["hardware"] else A100_PCIE
    cp, ep = (re.search(rf"{axis}=(\d+)", cells["sharding"]) for axis in ("CP", "EP"))
    group = "simumax b200" if hardware is B200 else "simumax a100-80g-pcie"
    model = _shape(cells, kv_heads=8, ffn=28672, is_gated=True, tied=False)
    if "DeepSeek" in cells["model"]:
        group += " deepseek-v3"
        model = read_model("deepseek-v3", layers=int(cells["layers"]), dense_layers=1)
    return _row(cells, group, hardware, model,
                precision="bf16", recompute="none", sharding="zero1", framework="megatron", overlap=False,
                cp=int(cp[1]) if cp else 1, ep=int(ep[1]) if ep else 1,
                fused_loss="CE-loss-fusion" in cells["sharding"])  # fmt: skip


@maker("InternEvo")
def _intern(cells: dict[str, str]) -> Row:
    model = _shape(cells, ffn=11008, is_gated=True, tied=False)
    return _row(cells, "internevo", SLOW_A100, model, precision="pure-bf16",
                recompute=cells["recompute"], sharding="zero1")  # fmt: skip


def _megatron_h100(cells: dict[str, str], group: str, hardware: Hardware, model: DecoderShape, **more: object) -> Row:
    cp = re.search(r"CP=(\d+)", cells["sharding"])
    chunks = re.search(r"VP=(\d+)", cells["sharding"])
    fsdp = re.search(r"FSDP=([1-9]\d*)", cells["sharding"])
    low = "8" in cells["precision"]
    if "FP4" in cells["precision"]:
        raise ValueError("4-bit products")
    cells = {**cells, "micro_batch": cells["micro_batch"] or "1"}
    return _row(cells, group, hardware, model, precision="fp8" if low and "bf16" not in cells["precision"] else "bf16",
                recompute="none", sharding="fsdp" if fsdp else "zero1", framework="megatron",
                cp=int(cp[1]) if cp else 1, pipeline_chunks=int(chunks[1]) if chunks else 1, fused_loss=True,
                **more)  # fmt: skip


@maker("model_table.png")
def _core(cells: dict[str, str]) -> Row:
    raise LookupError("micro-batch not stated")


@maker("Megatron-Bridge")
def _bridge(cells: dict[str, str]) -> Row:
    hardware = {"DGX-H100": H100, "DGX-B200": B200, "DGX-GB200": GB200, "DGX-GB300": GB300}[cells["hardware"]]
    if not cells["layers"]:
        raise LookupError("the model's shape is not stated")
    return _megatron_h100(cells, "megatron-bridge", hardware, _llama(cells))


@maker("NeMo")
def _nemo(cells: dict[str, str]) -> Row:
    if "LoRA" in cells["model"] or "SFT" in cells["model"]:
        raise ValueError("fine-tuning: not all parameters, or packed sequences of unstated lengths")
    if int(cells["params"] or 0) in LLAMA:
        return _megatron_h100(cells, "nemo", H100, _llama(cells))
    cells = {**cells, "vocab": cells["vocab"] or ("256000" if "Nemotron" in cells["model"] else "51200")}
    return _megatron_h100(cells, "nemo", H100, _shape(cells, tied=False))
