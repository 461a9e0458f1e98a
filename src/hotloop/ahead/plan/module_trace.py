"""A traced module -> memory of one device.

probe/module_memory.py makes the trace, in a child process with the user's Python; ``make_request`` describes its work,
and its reply decodes to a ModuleTrace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.hardware import Hardware
from hotloop.core.prediction import MemoryPrediction

DTYPES = ["float64", "float32", "float16", "bfloat16", "complex64", "int64", "int32", "int16", "int8", "uint8", "bool"]
PRECISIONS = ("fp32", "bf16", "fp16", "pure-bf16")
OPTIMIZERS = ("adamw", "adam", "sgd", "plain-sgd")
"""sgd uses a momentum of 0.9."""
TENSOR = re.compile(r"(?:(\w+):)?(\w+)\[([^\]]*)\]")
EXAMPLE = '"input_ids:int64[8,1024],labels:int64[8,1024]", "float32[32,3,224,224]", or FILE.py:FUNCTION'
WORKSPACE_BYTES = 2 * 8320 * 1024
HOPPER_WORKSPACE_BYTES = 2 * 32 * 1024 * 1024
"""cuBLAS workspaces, assumed to be one for forward and one for backward: 8,519,680 bytes each
(discuss.pytorch.org/t/178671), 32 MiB from compute capability 9 on (pytorch/pytorch#120925)."""
HOPPER = ("H100", "H200", "B200")
ERROR_RATIO = 0.05
"""Every row of docs/plan-module.md, on the CPU, is within it; no GPU was compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldAt:
    """The memory at the peak of one phase of one step and of one place relative to the repeated blocks."""

    step: int
    phase: str
    """forward | loss | backward | optimizer"""
    position: str
    """before | first | middle | last | after, of the repeated blocks."""
    op: str
    total_bytes: int
    by_category: Mapping[str, int]
    """parameters, buffers, inputs, gradients, optimizer_states, activations (kept for backward), temporaries,
    workspace."""
    by_class: Mapping[str, int]
    """Activations and temporaries by the class of the module that created them."""
    block_by_class: Mapping[str, int]
    """The memory that the first repeated block keeps for backward, likewise."""
    largest: tuple[Mapping[str, Any], ...]
    """The largest storages: size_bytes, category, class, line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTrace:
    """Two training steps of a module on fake tensors."""

    params: int
    sizes: Mapping[str, int]
    """Bytes of parameters, buffers, inputs, gradients and optimizer_states, each in full."""
    peaks: tuple[HeldAt, ...]
    imitated: tuple[str, ...]
    """The parts traced by CUDA's rules; empty for the CPU."""
    notes: tuple[str, ...]
    seconds: float

    @property
    def peak(self) -> HeldAt:
        return max(self.peaks, key=lambda moment: moment.total_bytes)


def read_tensors(text: str) -> list[dict[str, Any]] | None:
    """``[NAME:]DTYPE[SHAPE],...`` -> name (None: positional), dtype and shape of each; None for FILE:FUNCTION.

    >>> read_tensors("ids:int64[8,16],float32[8]")
    [{'name': 'ids', 'dtype': 'int64', 'shape': [8, 16]}, {'name': None, 'dtype': 'float32', 'shape': [8]}]
    """
    if "[" not in text:
        return None
    rest = TENSOR.sub("", text).replace(",", "").strip()
    if rest:
        raise UsageError(f"--batch {text}: {rest!r} is not a tensor; give {EXAMPLE}")
    found: list[dict[str, Any]] = []
    for name, dtype, shape in TENSOR.findall(text):
        sizes = [size.strip() for size in shape.split(",")] if shape.strip() else []
        if dtype not in DTYPES:
            raise UsageError(f"--batch {text}: unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}")
        if not all(size.isdecimal() and int(size) for size in sizes):
            raise UsageError(
                f"--batch {text}: [{shape}] is not a shape; give whole numbers of 1 or more, such as [8,1024]"
            )
        found.append({"name": name or None, "dtype": dtype, "shape": [int(size) for size in sizes]})
    return found


def make_request(
    module: tuple[str, str],
    batch: list[dict[str, Any]] | tuple[str, str],
    *,
    device: str,
    precision: str = "fp32",
    optimizer: str = "adamw",
) -> dict[str, Any]:
    """The request of probe/module_memory.py. ``module`` is FILE and FUNCTION, ``batch`` tensors or the same."""
    given: dict[str, Any] = {"tensors": batch} if isinstance(batch, list) else {"file": batch[0], "function": batch[1]}
    return {
        "file": module[0],
        "function": module[1],
        "batch": given,
        "device": device,
        "precision": precision,
        "optimizer": optimizer,
    }


def find_peak(trace: ModuleTrace, hardware: Hardware) -> tuple[HeldAt, MemoryPrediction]:
    """The moment of peak memory, and one device's memory then, with context and cuBLAS on a GPU."""
    workspace = 0
    if trace.imitated:
        workspace = HOPPER_WORKSPACE_BYTES if any(name in hardware.name for name in HOPPER) else WORKSPACE_BYTES
    moments = [(moment, _predict_moment(moment, hardware, workspace)) for moment in trace.peaks]
    return max(moments, key=lambda pair: pair[1].peak_bytes)


def _predict_moment(moment: HeldAt, hardware: Hardware, workspace_bytes: int) -> MemoryPrediction:
    held = moment.by_category
    at_loss = moment.position == "after" or moment.phase == "loss"
    loose = held.get("temporaries", 0)
    others = sum(held.get(name, 0) for name in ("buffers", "inputs", "workspace"))
    return MemoryPrediction(
        params_bytes=held.get("parameters", 0),
        master_bytes=0,
        gradients_bytes=held.get("gradients", 0),
        optimizer_bytes=held.get("optimizer_states", 0),
        activations_bytes=held.get("activations", 0),
        logits_bytes=loose if at_loss else 0,
        buffers_bytes=(0 if at_loss else loose) + others + workspace_bytes,
        context_bytes=hardware.context_bytes,
        capacity_bytes=hardware.memory_bytes,
        layer_bytes=sum(moment.block_by_class.values()),
        when=moment.phase,
        error_ratio=ERROR_RATIO,
        basis="traced",
    )


def describe_trace(trace: ModuleTrace, peak: HeldAt) -> tuple[str, ...]:
    """Notes for the reader on how the memory was found, and on what uses it."""
    after = f"after {peak.op} in the {peak.phase} of step {peak.step}" if peak.op else f"in the {peak.phase}"
    largest = sorted(peak.by_class.items(), key=lambda item: -item[1])[:5]
    made_by = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in largest)
    found = [f"the peak is {after}; activations and temporaries by the module that created them: {made_by}"]
    lines: dict[str, int] = {}
    for storage in peak.largest:
        if storage["line"] and storage["category"] in ("activations", "temporaries"):
            lines[storage["line"]] = lines.get(storage["line"], 0) + storage["size_bytes"]
    if lines:
        line, size = max(lines.items(), key=lambda item: item[1])
        found.append(f"most of the largest tensors are created by {line} ({size / 2**20:.1f} MiB)")
    found += trace.notes
    if trace.imitated:
        found.append(
            f"by CUDA's rules: {'; '.join(trace.imitated)}; not yet compared with a GPU; cuDNN's workspace is left out"
        )
    return tuple(found)
