"""Small trainings with one fault of a device, and the same without it: `python planted.py NAME DEVICE FOLDER`.

Each is recorded by torch.profiler, as its user would; they know nothing of hotloop. On a CPU they run too, smaller, so
that their code is exercised everywhere; the faults themselves need a device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

Step = Callable[[int], Any]

STEPS_COUNT = 12


def _weight(device: str) -> torch.Tensor:
    """Multiplied with itself it keeps a current accelerator busy for about half a millisecond."""
    width = 4096 if device == "cuda" else 64
    return torch.ones(width, width, device=device) / width


def launch_bound(device: str, *, planted: bool) -> Step:
    """Hundreds of kernels of a microsecond each; healthy: a few large products."""
    small, large = torch.ones(16, device=device), _weight(device)

    def step(number: int) -> None:
        if planted:
            for _ in range(300):
                small.add_(1)
        else:
            for _ in range(20):
                large @ large

    return step


def host_sync(device: str, *, planted: bool) -> Step:
    """The host reads a value after every product and only then prepares the next; healthy: once after the step."""
    weight, small = _weight(device), torch.ones(16, device=device)

    def step(number: int) -> None:
        for _ in range(10):
            product = weight @ weight
            if planted:
                product[0, 0].item()
                for _ in range(20):
                    small.add_(1)

    return step


def pageable_transfer(device: str, *, planted: bool) -> Step:
    """Every step copies its batch from ordinary memory; healthy: from pinned memory, beside the work."""
    weight = _weight(device)
    batch = torch.ones(64 << 20 if device == "cuda" else 1 << 10, dtype=torch.uint8)
    if not planted and device == "cuda":
        batch = batch.pin_memory()

    def step(number: int) -> None:
        if planted or device != "cuda":
            batch.to(device).float()
        else:
            side: Any = torch.cuda.Stream()
            with torch.cuda.stream(side):
                batch.to(device, non_blocking=True)
        for _ in range(10):
            weight @ weight

    return step


def allocator_thrash(device: str, *, planted: bool) -> Step:
    """The cache is emptied in the middle of every step, so that all memory is asked for again."""
    weight = _weight(device)

    def step(number: int) -> None:
        for _ in range(8):
            kept = [torch.empty(64 << 20 if device == "cuda" else 16, device=device) for _block in range(4)]
            weight @ weight
            del kept
            if planted and device == "cuda":
                torch.cuda.empty_cache()

    return step


def memory_pressure(device: str, *, planted: bool) -> Step:
    """All but a few percent of the memory is allocated; healthy: a tenth."""
    weight = _weight(device)
    total = torch.cuda.mem_get_info()[1] if device == "cuda" else 1 << 20

    def step(number: int) -> None:
        held = torch.empty(int(total * (0.94 if planted else 0.1)), dtype=torch.uint8, device=device)
        weight @ weight
        del held

    return step


def memory_growth(device: str, *, planted: bool) -> Step:
    """Every step leaves its output behind."""
    weight = _weight(device)
    model = nn.Linear(len(weight), len(weight), device=device)
    history = []

    def step(number: int) -> None:
        output = model(weight)
        if planted:
            history.append(output.detach())

    return step


TWINS: dict[str, Callable[..., Step]] = {
    "launch-bound": launch_bound,
    "host-sync": host_sync,
    "pageable-transfer": pageable_transfer,
    "allocator-thrash": allocator_thrash,
    "memory-pressure": memory_pressure,
    "memory-growth": memory_growth,
}
"""By the rule that must find the first of each pair and be silent about the second."""


def record(name: str, device: str, path: str, *, planted: bool) -> None:
    """Two steps to warm up, then the recorded ones."""
    step = TWINS[name](device, planted=planted)
    activities = [ProfilerActivity.CPU]
    for number in range(2):
        step(number)
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    count = STEPS_COUNT if device == "cuda" else 3
    with profile(
        activities=activities,
        profile_memory=name.startswith("memory-"),
        acc_events=True,
        schedule=schedule(wait=0, warmup=1, active=count + 1),  # without one torch marks no steps
    ) as profiler:
        for number in range(count + 1):
            step(number)
            profiler.step()
        if device == "cuda":
            torch.cuda.synchronize()
    profiler.export_chrome_trace(path)


if __name__ == "__main__":
    for kind in ("planted", "healthy"):
        record(sys.argv[1], sys.argv[2], f"{sys.argv[3]}/{sys.argv[1]}.{kind}.json.gz", planted=kind == "planted")
