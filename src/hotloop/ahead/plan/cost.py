"""Hours, checkpoints, failures, money and energy of a whole training, from the time of one step.

J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; J. T. Daly, "A higher
order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006. C is the time for which a
checkpoint stops training, M the mean time between interruptions, R the time of a restart, T the compute between two
checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import exp, expm1, sqrt

from hotloop.core.errors import UsageError
from hotloop.core.hardware import Hardware, Price
from hotloop.core.prediction import CheckpointPrediction, CostPrediction, StepPrediction
from hotloop.core.workload import Workload

from .hardware_files import read_number
from .memory import param_bytes, shard_ranks

GPU_HOURS_PER_FAILURE = 50_000.0
"""Unexpected interruptions of Llama 3: 419 in 54 days on 16,384 H100 (arXiv:2407.21783, section 3.3.4)."""


ASSUMED_CHECKPOINT_S = 30.0
"""The assumed time of a checkpoint if the bandwidth of its storage is not given."""
LEAST_USEFUL_RATIO = 0.01
"""Share of the time: if less is left between interruptions, a training does not end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How often a training is interrupted, and what that costs."""

    gpu_hours_per_failure: float = GPU_HOURS_PER_FAILURE
    """Device hours between two interruptions, over all devices."""
    gpu_hours_per_preemption: float | None = None
    """The same for preemptions of spot devices; None if unknown."""
    restart_s: float = 600.0
    """From the interruption to the next step, without repeated compute."""
    checkpoint_s: float | None = None
    """Time for which a checkpoint stops training; None: from its bytes, if ``storage_bytes_per_s`` is known."""
    storage_bytes_per_s: float | None = None
    """Bandwidth of all ranks together to the checkpoint storage."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                read_number(f"hardware.{field.name}", value, above=field.name not in ("checkpoint_s", "restart_s"))

    def mtbf_s(self, gpus: int) -> float:
        """Mean time between two interruptions of a training on this many devices."""
        return self.gpu_hours_per_failure / gpus * 3600

    def stall_s(self, total_bytes: float) -> float | None:
        """Time for which a synchronous checkpoint of this many bytes stops training; None if unknown."""
        if self.checkpoint_s is not None or self.storage_bytes_per_s is None:
            return self.checkpoint_s
        return total_bytes / self.storage_bytes_per_s

    def on_spot(self) -> Failures:
        """Failures and preemptions together: their rates add up."""
        if self.gpu_hours_per_preemption is None:
            return self
        rate = 1 / self.gpu_hours_per_failure + 1 / self.gpu_hours_per_preemption
        return replace(self, gpu_hours_per_failure=1 / rate, gpu_hours_per_preemption=None)


USUAL_FAILURES = Failures()


def young_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """The compute between two checkpoints that wastes the least time, to first order: sqrt(2 C M) (Young 1974).

    >>> young_interval_s(50, 10_000)
    1000.0
    """
    return sqrt(2 * checkpoint_s * mtbf_s)


def daly_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """The same to higher order (Daly 2006, equation 37); M if a checkpoint takes longer than 2 M.

    >>> round(daly_interval_s(50, 10_000), 1)
    966.9
    """
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    part = checkpoint_s / (2 * mtbf_s)
    return young_interval_s(checkpoint_s, mtbf_s) * (1 + sqrt(part) / 3 + part / 9) - checkpoint_s


def waste_ratio(interval_s: float, checkpoint_s: float, mtbf_s: float, restart_s: float) -> float:
    """The expected share of wall time without training: 1 - T / (M e^(R/M) (e^((T + C) / M) - 1)).

    This is Daly's wall time of a training much longer than T, with exponential times between interruptions, which may
    also occur during restarts and checkpoints. To first order, it is C/T + (T/2 + R)/M (Young).

    >>> round(waste_ratio(1000, 50, 10_000, 100), 4)
    0.1057
    """
    try:
        wall_s = mtbf_s * exp(restart_s / mtbf_s) * expm1((interval_s + checkpoint_s) / mtbf_s)
    except OverflowError:
        return 1.0
    return max(0.0, 1 - interval_s / wall_s)  # rounding may go below 0


def least_waste_ratio(checkpoint_s: float, mtbf_s: float, restart_s: float) -> float:
    """The waste at Daly's interval; with free checkpoints, only restarts are left.

    >>> round(least_waste_ratio(300, 86_400, 600), 4)
    0.0874
    """
    if not checkpoint_s:
        return -expm1(-restart_s / mtbf_s)
    return waste_ratio(daly_interval_s(checkpoint_s, mtbf_s), checkpoint_s, mtbf_s, restart_s)


def pick_price(hardware: Hardware, kind: str = "on-demand") -> Price | None:
    """The cheapest known price of this kind; None if no price is known."""
    fitting = [p for p in hardware.prices if p.kind == kind]
    return min(fitting, key=lambda price: price.usd_per_hour, default=None)


def predict_checkpoint(workload: Workload, hardware: Hardware, failures: Failures) -> CheckpointPrediction:
    """Weights and optimizer states of the trained parameters; each rank writes the part that no other rank holds."""
    model, run = workload.model, workload.run
    each = param_bytes(run)
    trained = model.params if run.trainable_params is None else min(model.params, run.trainable_params)
    weights, states = trained * each.params, trained * (each.master + each.optimizer)
    parts = run.tp * run.pp
    shards = shard_ranks(workload, hardware)[0]
    weight_shards = shards if run.sharding in ("zero3", "fsdp", "hsdp") else 1
    return CheckpointPrediction(
        total_bytes=round(weights + states),
        rank_bytes=round((weights / weight_shards + states / shards) / parts),
        ranks=parts * shards,
        stall_s=failures.stall_s(weights + states),
    )


def predict_cost(
    step: StepPrediction,
    workload: Workload,
    hardware: Hardware,
    tokens: int,
    *,
    failures: Failures = USUAL_FAILURES,
    price: Price | None = None,
) -> CostPrediction:
    """Totals of training on this many tokens at the predicted pace; ``price`` is for one device hour.

    Without ``failures``, interruptions are as frequent as Llama 3's; on spot devices, preemptions are added. Money is
    None if ``price`` is. Raises UsageError if interruptions leave no time to train.
    """
    if tokens < 1:
        raise UsageError(f"tokens = {tokens}: give a whole number of 1 or more")
    is_spot = price is not None and price.kind == "spot"
    interrupted = failures.on_spot() if is_spot else failures
    checkpoint = predict_checkpoint(workload, hardware, interrupted)
    stall_s = ASSUMED_CHECKPOINT_S if checkpoint.stall_s is None else checkpoint.stall_s
    mtbf_s = interrupted.mtbf_s(workload.gpus)
    waste = least_waste_ratio(stall_s, mtbf_s, interrupted.restart_s)
    if 1 - waste < LEAST_USEFUL_RATIO:
        raise UsageError(
            f"{workload.gpus} devices are interrupted before they have restarted: use fewer devices, or devices with "
            "fewer interruptions"
        )
    steps = -(-tokens // workload.tokens_per_step)
    compute_hours = steps * step.mid_ns / 3.6e12
    hours = compute_hours / (1 - waste)
    gpu_hours = hours * workload.gpus
    watt = hardware.power_watt
    interval_s = daly_interval_s(stall_s, mtbf_s) if stall_s else None
    notes = []
    if checkpoint.stall_s is None:
        notes.append(
            f"the stall for a checkpoint is unknown without hardware.storage_bytes_per_s: {ASSUMED_CHECKPOINT_S:g} s "
            "are assumed"
        )
    if is_spot and failures.gpu_hours_per_preemption is None:
        notes.append(
            "the preemption rate is unknown without hardware.gpu_hours_per_preemption: no preemptions are counted"
        )
    return CostPrediction(
        tokens=tokens,
        hours=hours,
        compute_hours=compute_hours,
        gpu_hours=gpu_hours,
        usd=None if price is None else gpu_hours * price.usd_per_hour,
        energy_kwh=None if watt is None else gpu_hours * watt / 1000,
        price="unknown"
        if price is None
        else f"{price.usd_per_hour:g} USD per hour, {price.kind}, {price.provider}, {price.day}",
        waste_ratio=waste,
        mtbf_s=mtbf_s,
        checkpoint=checkpoint,
        interval_s=interval_s,
        interval_steps=None if interval_s is None else max(1, round(interval_s / (step.mid_ns / 1e9))),
        stall_per_step_ns=None
        if checkpoint.stall_s is None or interval_s is None
        else checkpoint.stall_s * step.mid_ns / interval_s,
        notes=tuple(notes),
    )
