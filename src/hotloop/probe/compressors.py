"""Gradients, random or of the user's model -> what each compressor costs, sends and loses; in the user's Python.

Each matrix or vector is compressed by itself, on its device, as hotloop's communication hooks do. Nothing is sent.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hotloop.apply.compression.quantization import blocks_of, dequantize, levels_of, pack_bits, quantize, unpack_bits
from hotloop.apply.compression.selection import select_largest
from hotloop.probe.clock import time_arms

SIDE_COUNT = 1024
"""Rows and columns of the random matrices."""
MEMORY_FACTOR = 3
"""What is held at once, in copies of the gradients: they, their compressed forms, what is restored of one of them."""
TOPK_RATIO = 0.01
Sent = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Compressor:
    """``compress`` gives the tensors that would be sent of a gradient, ``restore`` the gradient from them."""

    name: str
    compress: Callable[[torch.Tensor], Sent]
    restore: Callable[[Sent, torch.Tensor], torch.Tensor]
    """(what was sent, a gradient of the same shape) -> the restored gradient."""


def measure_compressors(request: Mapping[str, Any], gradients: Sequence[torch.Tensor] | None) -> dict[str, Any]:
    """A row for each number of elements and compressor; ``gradients`` None stands for random ones of ``sizes`` Mi."""
    device = torch.device(request.get("device") or "cpu") if gradients is None else gradients[0].device
    sets: list[Sequence[torch.Tensor]] = [gradients] if gradients else []
    notes = []
    if gradients is None:
        for count in request["sizes"]:
            needed_bytes = count * SIDE_COUNT**2 * 4 * MEMORY_FACTOR
            if needed_bytes > request["memory_bytes"]:
                notes.append(f"{count} Mi elements were left out: they need about {needed_bytes >> 20} MiB of memory")
                continue
            draws = torch.Generator().manual_seed(count)
            sets.append([torch.randn(SIDE_COUNT, SIDE_COUNT, generator=draws).to(device) for _ in range(count)])
    if device.type == "cpu":
        torch.set_num_threads(1)  # then the clock is this thread's CPU time, which other processes do not change
        notes.append("compress, restore: CPU time of one thread")
    rows = [row for one in sets for row in _measure_set(one, request["budget_s"] / max(1, len(sets)))]
    return {"rows": rows, "device": str(device), "notes": notes}


def _measure_set(gradients: Sequence[torch.Tensor], budget_s: float) -> list[dict[str, Any]]:
    arms: dict[str, Callable[[], object]] = {}
    figures: dict[str, dict[str, Any]] = {}
    wait = _waiter(gradients[0].device)
    elements = sum(one.numel() for one in gradients)
    for compressor in list_compressors():
        sent = [compressor.compress(one) for one in gradients]
        lost = [compressor.restore(part, one) - one for part, one in zip(sent, gradients, strict=True)]
        figures[compressor.name] = {
            "sent_bytes": sum(tensor.nbytes for part in sent for tensor in part),
            "error_ratio": _norm(lost) / norm if (norm := _norm(gradients)) else 0.0,
        }

        def compress(compressor: Compressor = compressor) -> None:
            for one in gradients:
                compressor.compress(one)
            wait()

        def restore(compressor: Compressor = compressor, sent: Sequence[Sent] = sent) -> None:
            for part, one in zip(sent, gradients, strict=True):
                compressor.restore(part, one)
            wait()

        arms |= {f"{compressor.name} compress": compress, f"{compressor.name} restore": restore}
    times = time_arms(arms, budget_s)
    return [
        {
            "elements": elements,
            "method": name,
            "compress_ns": round(min(times[f"{name} compress"])),
            "compress_median_ns": round(statistics.median(times[f"{name} compress"])),
            "restore_ns": round(min(times[f"{name} restore"])),
            "sent_ratio": one["sent_bytes"] / (4 * elements),
            "error_ratio": one["error_ratio"],
            "n": len(times[f"{name} compress"]),
        }
        for name, one in figures.items()
    ]


def list_compressors() -> list[Compressor]:
    """Those of hotloop, by what they send: the mildest first."""
    return [
        Compressor("bf16", lambda one: [one.to(torch.bfloat16)], lambda sent, one: sent[0].to(one.dtype)),
        Compressor("fp16", lambda one: [one.to(torch.float16)], lambda sent, one: sent[0].to(one.dtype)),
        _quantizer(8),
        _quantizer(4),
        Compressor(f"topk {TOPK_RATIO:.0%}", _choose_largest, _scatter),
    ]


def _quantizer(num_bits: int) -> Compressor:
    def compress(one: torch.Tensor) -> Sent:
        rest = one.reshape(-1).clone()
        codes = torch.empty(rest.numel(), dtype=torch.int8, device=one.device)
        scales = torch.empty(blocks_of(rest.numel()), device=one.device)
        quantize(rest, codes, scales, levels_of(num_bits))
        return pack_bits(codes, num_bits), scales

    def restore(sent: Sent, one: torch.Tensor) -> torch.Tensor:
        values = torch.empty(one.numel(), device=one.device)
        dequantize(unpack_bits(sent[0], num_bits, one.numel()), sent[1], values)
        return values.view_as(one)

    return Compressor(f"int{num_bits}", compress, restore)


def _choose_largest(one: torch.Tensor) -> Sent:
    flat = one.reshape(-1)
    chosen = select_largest(flat, max(1, round(TOPK_RATIO * flat.numel())))
    return flat[chosen], chosen.to(torch.int32)


def _scatter(sent: Sent, one: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(one).view(-1).index_copy_(0, sent[1].long(), sent[0]).view_as(one)


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(one.float()) for one in tensors]).double().norm())


def _waiter(device: torch.device) -> Callable[[], None]:
    if device.type == "cpu":
        return lambda: None
    synchronize: Callable[[], None] = getattr(torch, device.type).synchronize
    return synchronize
