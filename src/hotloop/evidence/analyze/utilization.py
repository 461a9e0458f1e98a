"""The operators of one recorded step, the peak of the hardware, and samples -> Utilization of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.operators import PRODUCTS
from hotloop.core.utilization import Utilization, rate_over_peak

from .timeline.flops import count_call, find_peaks, name_type

NO_DEVICE = "training ran on the CPU: there is no device to measure"
NO_NVML = (
    "NVML reported nothing about the devices during steady steps, or too few samples in too short a time (this needs "
    "the telemetry extra and a driver)"
)
NO_TIMELINE = "no kernel timeline was recorded (hotloop run --trace)"
NO_OPERATORS = {
    "cpu": "the operators of a step were not recorded: no --deep, torch.compile, sharded tensors, or too few steps",
    "": "FLOPs were not counted: on an accelerator, use hotloop run --deep --target mfu=RATIO, or --trace",
}
NO_CPU_PEAK = "this machine's peak rate was not measured: the probe after training does that (not with --no-probe)"
NO_CORES = "the cores were not sampled while the steps were steady"
KNOWN_LIBRARIES = ("aten", "c10d", "_c10d_functional", "prims", "profiler")
"""An operator may multiply matrices inside another, as those of attention libraries do."""
MOST_OPERATORS = 20_000
"""A recorded step with this many operators was cut there (observe/deep.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFlops:
    """The FLOPs of one step of one rank."""

    model_flops: float
    hardware_flops: float
    types: str
    """Of the arguments of most of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Measurements from outside the training's process, over the steady steps; None if there are none."""

    utilization_ratio: float | None = None
    sm_active_ratio: float | None = None
    cpu_utilization_ratio: float | None = None
    cpu_others_ratio: float | None = None
    device_name: str | None = None
    cpu_peaks: Mapping[str, float] | None = None
    """FLOPs per second of products on this machine's CPU with the training's threads, by element type."""


def count_step(ops: Mapping[str, Any] | None, is_checkpointing: bool) -> StepFlops | str:
    """FLOPs of the recorded step; a reason if they are unknown.

    What autograd records during backward counts as computed twice if checkpoints were seen.
    """
    if ops is None:
        return NO_OPERATORS["cpu"]
    if int(ops.get("operators") or 0) >= MOST_OPERATORS:
        return f"the recorded step has more than {MOST_OPERATORS:,} operators, and the rest was not recorded"
    left_out = int(ops.get("signatures") or 0) - len(ops["ops"])
    if left_out > 0 and "more_products" not in ops:
        return f"{left_out} kinds of operators of the step were not recorded"
    flops = again = 0.0
    by_types: Counter[str] = Counter()
    for op in (*ops["ops"], *ops.get("more_products", ())):
        if op["name"].partition("::")[0] not in KNOWN_LIBRARIES:
            return f"the work of {op['name']} is unknown"
        if op["name"] not in PRODUCTS:
            continue
        work = count_call(op["name"], op["shapes"], op["inputs"])
        if work is None:
            return f"the work of {op['name']} does not follow from its shapes"
        flops += work.flops * op["count"]
        again += (work.flops if is_checkpointing and op.get("graded") else work.again) * op["count"]
        by_types[str(op["dtypes"])] += work.flops * op["count"]
    if not flops:
        return "the step has no matrix product, convolution or attention"
    return StepFlops(model_flops=flops - again, hardware_flops=flops, types=by_types.most_common(1)[0][0])


def measure_utilization(analysis: Analysis, sampled: Sampled, traced: Utilization | None = None) -> Utilization:
    """For the steady steps; a kernel timeline of the same run fills in what nothing else measures."""
    device = analysis.lead.device_type
    of_cpu = device == "cpu"
    rank = next((one for one in analysis.ranks if one.ops is not None or one.products is not None), analysis.lead)
    ops = rank.products if rank.ops is None else rank.ops
    counted = count_step(ops, bool(rank.checkpointing))
    if ops is None and not of_cpu:
        counted = NO_OPERATORS[""]
    if isinstance(counted, str) and traced is not None and traced.flops_per_step is not None:
        counted = StepFlops(
            model_flops=traced.flops_per_step,
            hardware_flops=traced.hardware_flops_per_step or traced.flops_per_step,
            types="",
        )
    values: dict[str, Any] = {
        "utilization_ratio": sampled.utilization_ratio,
        "busy_ratio": None if traced is None else traced.busy_ratio,
        "sm_active_ratio": sampled.sm_active_ratio,
        "cpu_utilization_ratio": sampled.cpu_utilization_ratio,
        "cpu_others_ratio": sampled.cpu_others_ratio,
    }
    if values["sm_active_ratio"] is None and traced is not None:
        values["sm_active_ratio"] = traced.sm_active_ratio
    unknown = {
        "utilization_ratio": NO_DEVICE if of_cpu else NO_NVML,
        "busy_ratio": NO_DEVICE if of_cpu else NO_TIMELINE,
        "sm_active_ratio": NO_DEVICE if of_cpu else NO_TIMELINE,
        "cpu_utilization_ratio": NO_CORES,
    }
    if isinstance(counted, str):
        unknown |= {"mfu_ratio": counted, "hfu_ratio": counted}
    else:
        values |= {"flops_per_step": counted.model_flops, "hardware_flops_per_step": counted.hardware_flops}
        peak = _find_peak(rank, counted.types, sampled, traced)
        if isinstance(peak, str):
            unknown |= {"mfu_ratio": peak, "hfu_ratio": peak}
        else:
            rate = 1e9 / rank.step_mean_ns
            values |= {"peak_flops_per_s": peak[0], "peak": peak[1]}
            values["mfu_ratio"] = rate_over_peak(rate, counted.model_flops, peak[0])
            values["hfu_ratio"] = rate_over_peak(rate, counted.hardware_flops, peak[0])
    unknown = {name: reason for name, reason in unknown.items() if values.get(name) is None}
    return Utilization(**values, unknown=unknown)


def _find_peak(rank: RankAnalysis, types: str, sampled: Sampled, traced: Utilization | None) -> tuple[float, str] | str:
    """(FLOPs per second, of what), or why there is no peak."""
    if rank.device_type == "cpu":
        kind = name_type(types)
        measured = (sampled.cpu_peaks or {}).get(kind or "")
        if measured is None:
            return NO_CPU_PEAK
        threads = f"{rank.torch_threads} threads" if (rank.torch_threads or 0) != 1 else "1 thread"
        return measured, f"{kind} on {threads} of this CPU, measured after the run"
    if not types and traced is not None and traced.peak_flops_per_s is not None:
        return traced.peak_flops_per_s, traced.peak
    peaks = find_peaks(sampled.device_name)
    peak = None if peaks is None else peaks.of(types)
    if peak is None:
        return f"the peak rate of {sampled.device_name or 'the device'} is unknown"
    return peak.flops_per_s, f"{peak.kind} of {sampled.device_name}, dense, by its data sheet"
