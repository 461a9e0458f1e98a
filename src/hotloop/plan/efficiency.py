"""What devices reach of their data sheet in training: the constants of plan/efficiency.toml, of one kind of device."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from hotloop.core.hardware import Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of data-sheet rates, and costs that no data sheet states."""

    product_ratio: float
    """Of the 16-bit (or 32-bit) peak, by a product so large that its bytes do not matter."""
    fp8_ratio: float
    """The same of the 8-bit peak."""
    attention_ratio: float
    """Of the 16-bit peak, by fused attention in PyTorch; the causal half counted."""
    megatron_attention_ratio: float
    """The same in Megatron, which takes it from cuDNN."""
    idle_outputs: float
    """Elements of a product's result that could have been computed in its last wave of tiles besides."""
    backward_ratio: float
    """Backward time over twice the forward time, which its FLOPs and bytes are."""
    memory_ratio: float
    """Of the memory's bandwidth."""
    eager_passes: float
    """Times that the bytes of everything but products move, over the least they could: uncompiled PyTorch."""
    compiled_passes: float
    megatron_passes: float
    """Megatron's own fused kernels."""
    host_ns: float
    """Until the host has launched one layer's forward pass; uncompiled PyTorch."""
    megatron_host_ns: float
    step_host_ns: float
    """Once a step: the optimizer's launches, clipping, schedule, the next batch."""
    contention_ratio: float
    """What compute and communication beside each other add, as a share of the shorter one."""
    inside_ratio: float
    """Of the bandwidth inside a node."""
    between_ratio: float
    """Of the bandwidth between nodes."""
    hop_ratio: float
    """A ring's step from node to node, over the latency of the link between them."""
    compute_factor: float = 1.0
    """Measured over predicted; by calibration."""
    host_factor: float = 1.0
    error_ratio: float
    """Four fifths of the published steps that were not fitted lie within this share of the prediction, or more."""
    megatron_error_ratio: float
    basis: str = "formula"

    def scaled(self, *, compute: float, host: float, error_ratio: float) -> Efficiency:
        """Corrected by what was measured."""
        return replace(
            self,
            compute_factor=compute,
            host_factor=host,
            error_ratio=error_ratio,
            megatron_error_ratio=error_ratio,
            basis="calibrated",
        )


def read_efficiency(hardware: Hardware) -> Efficiency:
    """The constants of this device: its own where published rows show them, by words of its name; else those of any."""
    tables = _tables()
    words = set(re.split(r"[^a-z0-9]+", hardware.name.lower()))
    values = {name: entry["value"] for name, entry in tables["all"].items()}
    errors = dict(tables["errors"]["other"])
    for kind in ("other", *sorted(words & tables["devices"].keys())):
        values |= {name: entry["value"] for name, entry in tables["devices"][kind].items()}
        errors |= tables["errors"].get(kind, {})
    return Efficiency(**values, error_ratio=errors["torch"], megatron_error_ratio=errors["megatron"])


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("efficiency.toml").read_text(encoding="utf-8"))
