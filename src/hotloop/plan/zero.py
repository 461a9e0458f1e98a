"""Model states by ZeRO stage: parameters, gradients and optimizer states of one device, without activations.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (arXiv:1910.02054), section 5
and table 1: stage 1 shards the optimizer's states over the data-parallel ranks, stage 2 the gradients as well, stage 3
the parameters as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.core.errors import UsageError
from hotloop.core.workload import OPTIMIZERS, require_choice, require_count

ZERO_PRECISIONS = ("mixed", "fp32")
"""mixed: 16-bit parameters and gradients, float32 parameters and optimizer states. fp32: everything in float32."""

STATE_BYTES = {"adamw": 8.0, "sgd": 4.0, "adafactor": 0.0, "adamw-8bit": 2.0 * (1 + 4 / 256)}
"""Of an optimizer's states, per parameter. sgd with momentum; adafactor's rows and columns are too small to count;
8-bit Adam keeps a float32 scale for each block of 256 (bitsandbytes)."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Of one parameter, on a device that holds all of it: what each part needs."""

    params: float
    gradients: float
    master: float
    """A float32 copy of the parameters beside them."""
    optimizer: float

    @property
    def total(self) -> float:
        return self.params + self.gradients + self.master + self.optimizer


@dataclass(frozen=True, slots=True)
class ZeroRow:
    """Bytes on one device at one stage; stage 0 is data-parallel training without sharding."""

    stage: int
    params_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    """With the float32 copy of the parameters."""

    @property
    def total_bytes(self) -> float:
        return self.params_bytes + self.gradients_bytes + self.optimizer_bytes


def state_bytes(precision: str, optimizer: str = "adamw") -> StateBytes:
    """Per parameter: 2 + 2 + 4 + 8 for mixed precision and Adam (16 in all), 4 + 4 + 8 in float32.

    >>> state_bytes("mixed").total, state_bytes("fp32").total
    (16.0, 16.0)
    """
    require_choice("precision", precision, ZERO_PRECISIONS)
    require_choice("optimizer", optimizer, OPTIMIZERS)
    states = STATE_BYTES[optimizer]
    return StateBytes(2, 2, 4, states) if precision == "mixed" else StateBytes(4, 4, 0, states)


def zero_memory(
    params: float, ranks: int, *, optimizer: str = "adamw", precision: str = "mixed"
) -> tuple[ZeroRow, ZeroRow, ZeroRow, ZeroRow]:
    """What stages 0 to 3 of ZeRO leave on one of ``ranks`` devices, in bytes.

    ``params`` counts the model's parameters; ``precision`` is mixed or fp32; ``optimizer`` is adamw, sgd (with
    momentum), adafactor or adamw-8bit. Formula of arXiv:1910.02054, table 1. Raises UsageError.

    >>> [round(row.total_bytes / 1e9, 2) for row in zero_memory(7.5e9, 64)]
    [120.0, 31.41, 16.64, 1.88]
    >>> [round(row.total_bytes / 1e9, 2) for row in zero_memory(175e9, 64, precision="fp32")]
    [2800.0, 1421.88, 732.81, 43.75]
    """
    if isinstance(params, bool) or not isinstance(params, int | float) or not 1 <= params < 1e18:
        raise UsageError(f"params = {params!r}: give the number of parameters, such as 175e9")
    require_count("ranks", ranks)
    each = state_bytes(precision, optimizer)

    def shard(per_param: float, is_sharded: bool) -> float:
        return params * per_param / (ranks if is_sharded else 1)

    rows = tuple(
        ZeroRow(
            stage,
            shard(each.params, stage >= 3),
            shard(each.gradients, stage >= 2),
            shard(each.master + each.optimizer, stage >= 1),
        )
        for stage in range(4)
    )
    return rows[0], rows[1], rows[2], rows[3]
