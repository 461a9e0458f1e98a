"""What techniques save and cost on a CUDA device -> gpu_techniques.json in $OUT, or in benchmarks/results.

Run by scripts/gpu.sh; torch and the standard library only. Without a device it says so and writes nothing. Variants
alternate in rounds; times are medians of device time between events (of the clock on a CPU, where only tests run it).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

BUDGET_S = 150
"""No further measure begins after this; scripts/gpu.sh ends the program at 220 s, and what was measured is kept."""
MAX_AUTOTUNE_S = 60
"""max-autotune tries many kernels: it is left out where the other modes took longer than this."""
Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the measured things are."""

    width: int = 1024
    layers: int = 8
    batch: int = 8
    lengths: tuple[int, ...] = (512, 2048, 8192)
    matrix: int = 4096
    rounds: int = 10
    transfer_bytes: tuple[int, ...] = (1 << 20, 1 << 24, 1 << 28)


TINY = Sizes(width=32, layers=2, batch=2, lengths=(16, 32), matrix=32, rounds=2, transfer_bytes=(64,))


def build(device: str, sizes: Sizes) -> nn.Module:
    torch.manual_seed(0)
    blocks = [
        nn.TransformerEncoderLayer(sizes.width, 8, 4 * sizes.width, 0.0, batch_first=True, norm_first=True)
        for _ in range(sizes.layers)
    ]
    return nn.Sequential(*blocks).to(device)


def batch_of(device: str, sizes: Sizes) -> torch.Tensor:
    return torch.randn(sizes.batch, sizes.lengths[0], sizes.width, device=device)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def time_ms(work: Callable[[], Any], device: str) -> float:
    """One call, in milliseconds of the device."""
    if device != "cuda":
        began = time.perf_counter()
        work()
        return (time.perf_counter() - began) * 1e3
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def compare(variants: dict[str, Callable[[], Any]], device: str, rounds: int) -> Figures:
    """Median and extremes of each variant's ms; variants alternate, after three calls to warm up."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for work in variants.values():
        for _ in range(3):
            work()
    synchronize(device)
    for _ in range(rounds):
        for name, work in variants.items():
            times[name].append(time_ms(work, device))
    return {
        name: {"median_ms": statistics.median(t), "min_ms": min(t), "max_ms": max(t), "n": len(t)}
        for name, t in times.items()
    }


def peak_bytes(work: Callable[[], Any], device: str) -> int | None:
    """Most memory above what was allocated before; None without a device."""
    if device != "cuda":
        work()
        return None
    synchronize(device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    synchronize(device)
    return torch.cuda.max_memory_allocated() - before


def step_of(model: Any, x: torch.Tensor, *, dtype: torch.dtype | None = None) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        around = torch.autocast(x.device.type, dtype) if dtype is not None else contextlib.nullcontext()
        with around:
            out = model(x)
        out.float().square().mean().backward()

    return step


def measure_precision(device: str, sizes: Sizes) -> Figures:
    x = batch_of(device, sizes)
    model = build(device, sizes)

    def with_precision(name: str) -> Callable[[], None]:
        step = step_of(model, x)

        def run() -> None:
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision(name)
            try:
                step()
            finally:
                torch.set_float32_matmul_precision(before)

        return run

    found = compare(
        {
            "fp32": with_precision("highest"),
            "tf32": with_precision("high"),
            "bf16": step_of(model, x, dtype=torch.bfloat16),
        },
        device,
        sizes.rounds,
    )
    found["peak_bytes"] = {
        "fp32": peak_bytes(step_of(model, x), device),
        "bf16": peak_bytes(step_of(model, x, dtype=torch.bfloat16), device),
    }
    return found


def measure_attention(device: str, sizes: Sizes) -> Figures:
    """Forward and backward; a backend that refuses, or does not fit, says why."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    found: Figures = {}
    dtype = torch.bfloat16
    for length in sizes.lengths:
        q, k, v = (torch.randn(2, 16, length, 64, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
        figures: Figures = {}
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("math", SDPBackend.MATH)):

            def attend(q: Any = q, k: Any = k, v: Any = v, backend: Any = backend) -> None:
                with sdpa_kernel(backend):
                    out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                out.sum().backward()

            try:
                figures |= compare({name: attend}, device, sizes.rounds)
                figures[f"{name}_peak_bytes"] = peak_bytes(attend, device)
            except RuntimeError as error:  # OutOfMemoryError is one
                figures[name] = {"failed": str(error)[:200]}
        found[str(length)] = figures
    return found


def measure_compile(device: str, sizes: Sizes) -> Figures:
    """Two blocks, eager and compiled in each mode; reduce-overhead replays CUDA graphs. A mode that fails says why."""
    small = replace(sizes, layers=2)
    x = batch_of(device, small)
    eager = step_of(build(device, small), x, dtype=torch.bfloat16)
    first_s: Figures = {}
    beside_eager: Figures = {}
    failed: Figures = {}
    modes = ("default", "reduce-overhead", "max-autotune-no-cudagraphs") if device == "cuda" else ("default",)
    started = time.perf_counter()
    for mode in modes:
        if mode.startswith("max") and time.perf_counter() - started > MAX_AUTOTUNE_S:
            failed[mode] = f"not begun: the modes before it took more than {MAX_AUTOTUNE_S} s"
            continue
        torch._dynamo.reset()
        step = step_of(torch.compile(build(device, small), mode=mode), x, dtype=torch.bfloat16)
        began = time.perf_counter()
        try:
            step()
            synchronize(device)
        except Exception as error:
            failed[mode] = f"{type(error).__name__}: {error}"[:300]
            continue
        first_s[mode] = time.perf_counter() - began
        # Measured at once: the next mode's reset would compile this one again.
        beside_eager[mode] = compare({"eager": eager, mode: step}, device, sizes.rounds)
    return {"modes": beside_eager, "first_step_s": first_s, "modes_failed": failed}


def measure_graphs(device: str, sizes: Sizes) -> Figures:
    """Many small kernels, launched one by one and replayed as one CUDA graph."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(50))).to(device)
    x = torch.randn(8, 64, device=device)

    def forward() -> None:
        with torch.no_grad():
            model(x)

    if device != "cuda":
        return compare({"launched": forward}, device, sizes.rounds) | {"replayed": None}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        forward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    return compare({"launched": forward, "replayed": graph.replay}, device, sizes.rounds)


def measure_optimizers(device: str, sizes: Sizes) -> Figures:
    variants = {}
    for name, options in (("for-loop", {"foreach": False}), ("foreach", {"foreach": True}), ("fused", {"fused": True})):
        model = build(device, sizes)
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        variants[name] = torch.optim.AdamW(model.parameters(), **options).step  # type: ignore[arg-type]
    return compare(variants, device, sizes.rounds)


def measure_prefetch(device: str, sizes: Sizes) -> Figures:
    """Copy then compute, and the next copy on a side stream meanwhile; record_stream must keep blocks from reuse."""
    count = 8
    host = [torch.randn(sizes.matrix, sizes.matrix) for _ in range(count)]
    if device != "cuda":
        return compare({"in turn": lambda: [one @ one for one in host]}, device, sizes.rounds) | {"overlapped": None}
    host = [one.pin_memory() for one in host]
    expected = [one.to(device) for one in host]
    side = torch.cuda.Stream()
    differing = torch.zeros((), dtype=torch.int64, device=device)

    def in_turn() -> None:
        for one in host:
            x = one.to(device, non_blocking=True)
            torch.mm(x, x)

    def fetch(one: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(side):
            return one.to(device, non_blocking=True)

    def overlapped(check: bool = False) -> None:
        following = fetch(host[0])
        for index in range(count):
            torch.cuda.current_stream().wait_stream(side)
            x = following
            x.record_stream(torch.cuda.current_stream())
            if index + 1 < count:
                following = fetch(host[index + 1])
            torch.mm(x, x)
            if check:  # on the device, after its use and without waiting: a wait would hide a block that is reused
                differing.add_((x != expected[index]).any())

    found = compare({"in turn": in_turn, "overlapped": overlapped}, device, sizes.rounds)
    synchronize(device)
    for _ in range(sizes.rounds):
        overlapped(check=True)
    return found | {"batches_overwritten": int(differing), "peak_bytes": peak_bytes(overlapped, device)}


def measure_transfers(device: str, sizes: Sizes) -> Figures:
    """Copies between host and device by size, from and to pageable and pinned memory; bytes/s are of the median."""
    found: Figures = {}
    for size in sizes.transfer_bytes:
        pageable = torch.zeros(size, dtype=torch.uint8)
        hosts = {"pageable": pageable}
        if device == "cuda":
            hosts["pinned"] = pageable.pin_memory()
        there = pageable.to(device, copy=True)
        variants: dict[str, Callable[[], Any]] = {}
        for kind, host in hosts.items():
            variants[f"{kind} to device"] = lambda host=host, there=there: there.copy_(host, non_blocking=True)
            variants[f"{kind} to host"] = lambda host=host, there=there: host.copy_(there, non_blocking=True)
        times = compare(variants, device, sizes.rounds)
        found[str(size)] = {
            name: {**one, "bytes_per_s": size / one["median_ms"] * 1e3 if one["median_ms"] else None}
            for name, one in times.items()
        }
    return found


def measure_device_prefetcher(device: str, sizes: Sizes) -> Figures:
    """hotloop's DevicePrefetcher against a copy before each use: time, and whether every batch is the loader's."""
    from hotloop import DevicePrefetcher

    host = [torch.randn(sizes.matrix, sizes.matrix) for _ in range(8)]
    if device == "cuda":
        host = [one.pin_memory() for one in host]
    expected = [one.to(device) for one in host]
    differing = torch.zeros((), dtype=torch.int64, device=device)

    def in_turn() -> None:
        for one in host:
            x = one.to(device, non_blocking=True)
            torch.mm(x, x)

    def prefetched() -> None:
        for x in DevicePrefetcher(host, device):
            torch.mm(x, x)

    found = compare({"in turn": in_turn, "prefetched": prefetched}, device, sizes.rounds)
    for _ in range(sizes.rounds):
        for x, right in zip(DevicePrefetcher(host, device), expected, strict=True):
            torch.mm(x, x)
            differing.add_((x != right).any())  # after its use and without waiting, as above
    return found | {"batches_overwritten": int(differing), "peak_bytes": peak_bytes(prefetched, device)}


def measure_activations(device: str, sizes: Sizes) -> Figures:
    """Recomputing every block, and saved tensors on the host: time and peak memory."""
    from torch.utils.checkpoint import checkpoint

    x = batch_of(device, sizes)
    model = build(device, sizes)
    assert isinstance(model, nn.Sequential)

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Any) -> Any:
            for block in model:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    plain = step_of(model, x, dtype=torch.bfloat16)

    def offloaded() -> None:
        with torch.autograd.graph.save_on_cpu(pin_memory=device == "cuda"):
            plain()

    variants = {"plain": plain, "recomputed": step_of(Recomputed(), x, dtype=torch.bfloat16), "offloaded": offloaded}
    found = compare(variants, device, max(2, sizes.rounds // 3))
    found["peak_bytes"] = {name: peak_bytes(work, device) for name, work in variants.items()}
    return found


MEASURES: dict[str, Callable[[str, Sizes], Figures]] = {
    "precision": measure_precision,
    "attention": measure_attention,
    "optimizers": measure_optimizers,
    "prefetch": measure_prefetch,
    "device_prefetcher": measure_device_prefetcher,
    "transfers": measure_transfers,
    "activations": measure_activations,
    "graphs": measure_graphs,
    "compile": measure_compile,
}


def measure_all(
    device: str,
    sizes: Sizes,
    names: Sequence[str],
    budget_s: float = BUDGET_S,
    keep: Callable[[Figures], None] = lambda found: None,
) -> Figures:
    """Every measure by name; a measure that fails, or that there is no time for, says so in its place.

    ``keep`` gets the results so far after each.
    """
    began = time.perf_counter()
    found: Figures = {}
    for name in names:
        if time.perf_counter() - began > budget_s:
            found[name] = {"failed": f"not begun: {budget_s:g} s had passed"}
            continue
        started = time.perf_counter()
        try:
            found[name] = MEASURES[name](device, sizes)
        except Exception as error:
            found[name] = {"failed": f"{type(error).__name__}: {error}"[:300]}
        found[name]["took_s"] = round(time.perf_counter() - started, 1)
        keep(found)
        if device == "cuda":
            torch.cuda.empty_cache()
    keep(found)
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Measure techniques on a CUDA device.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MEASURES)} (default: all)")
    names = parser.parse_args(arguments).names or list(MEASURES)
    if not torch.cuda.is_available():
        print("benchmarks/gpu_techniques.py: no CUDA device here; nothing was measured")
        return 0
    folder = Path(os.environ.get("OUT") or Path(__file__).parent / "results")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "gpu_techniques.json"
    head = {
        "schema": "hotloop.gpu-techniques/1",
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }

    def keep(found: Figures) -> None:
        scratch = file.with_suffix(".new")
        scratch.write_text(json.dumps({**head, "measures": found}, indent=1) + "\n")
        scratch.replace(file)

    found = measure_all("cuda", Sizes(), names, keep=keep)
    failed = [name for name, figures in found.items() if "failed" in figures]
    print(f"wrote {file}; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
