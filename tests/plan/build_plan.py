"""Small workloads and round hardware, so that expected values can be computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotloop.ahead.plan.hardware_files import Efficiency
from hotloop.core.hardware import Hardware, Price
from hotloop.core.link_fit import LinkFit
from hotloop.core.prediction import MemoryPrediction
from hotloop.core.workload import DecoderShape, PlannedRun, Workload

DEVICE = Hardware(
    name="round",
    memory_bytes=80 * 10**9,
    memory_bytes_per_s=1e12,
    peak_flops={"bf16": 1e14, "fp16": 1e14, "fp32": 1e13},
    gpus_per_node=8,
    inside=LinkFit(latency_ns=10_000, bytes_per_s=1e11),
    between=LinkFit(latency_ns=10_000, bytes_per_s=1e10),
    host_bytes_per_s=1e10,
    power_watt=500,
    prices=(
        Price(usd_per_hour=2.0, provider="A", day="2026-01-01"),
        Price(usd_per_hour=3.0, provider="B", day="2026-01-01"),
        Price(usd_per_hour=0.8, provider="A", day="2026-01-01", kind="spot"),
    ),
)
IDEAL = Efficiency(
    product_ratio=1.0, fp8_ratio=1.0, attention_ratio=1.0, megatron_attention_ratio=1.0, idle_outputs=0.0,
    backward_ratio=1.0, memory_ratio=1.0, eager_passes=1.0, compiled_passes=1.0, megatron_passes=1.0, host_ns=0.0,
    megatron_host_ns=0.0, step_host_ns=0.0, contention_ratio=0.0, inside_ratio=1.0, between_ratio=1.0, hop_ratio=1.0,
    error_ratio=0.25, megatron_error_ratio=0.5,
)  # fmt: skip
"""Everything at its data-sheet rate."""
SHAPE = DecoderShape(layers=8, hidden=1024, heads=16, vocab=32000, seq=1024)


def make_workload(model: DecoderShape = SHAPE, gpus: int = 8, **run: Any) -> Workload:
    """A small model on one node; ``run`` changes how it is trained."""
    planned = PlannedRun(**{"micro_batch": 4, "global_batch": 64, **run})
    return Workload(model=model, run=planned, gpus=gpus)


def without_memory_time(hardware: Hardware = DEVICE) -> Hardware:
    """Bytes cost nothing, so that only FLOPs are left."""
    return replace(hardware, memory_bytes_per_s=1e30)


def states_only(workload: Workload, hardware: Hardware) -> MemoryPrediction:
    """16 bytes a parameter, sharded, and 34 bytes of activation for each hidden unit of a token."""
    run, model = workload.run, workload.model
    shards = workload.data_ranks if run.sharding == "fsdp" else 1
    kept = 2 if run.recompute == "full" else 34
    activations = kept * run.micro_batch * model.seq * model.hidden * model.layers // (run.tp * run.pp)
    return MemoryPrediction(
        params_bytes=16 * model.params // (run.tp * run.pp * shards), master_bytes=0, gradients_bytes=0,
        optimizer_bytes=0, activations_bytes=activations, logits_bytes=0, buffers_bytes=0, context_bytes=0,
        capacity_bytes=hardware.memory_bytes, layer_bytes=0, when="backward", error_ratio=0.0, basis="formula",
    )  # fmt: skip
