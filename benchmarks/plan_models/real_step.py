"""One of the models, trained for two real steps -> the peak of its tensor memory, as one line of JSON.

On the CPU the peak is that of torch.profiler's memory events (allocations minus frees, from before the model is built);
on CUDA torch.cuda.max_memory_allocated.

    python real_step.py MODEL PRECISION OPTIMIZER DEVICE BATCH
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import sys
import time
from typing import Any

import models
import torch
from torch.profiler import ProfilerActivity, profile

OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
}


def train(model_name: str, precision: str, optimizer_name: str, device: str, batch: str) -> float:
    """Seconds of the second of two steps."""
    torch.manual_seed(0)
    model = getattr(models, f"make_{model_name}")().to(device)
    unnamed, named = [], {}
    for name, dtype, shape in re.findall(r"(?:(\w+):)?(\w+)\[([\d,]*)\]", batch):
        tensor = models.real_tensor(dtype, [int(size) for size in shape.split(",")]).to(device)
        if name:
            named[name] = tensor
        else:
            unnamed.append(tensor)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    for _ in range(2):
        begin_s = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext():
            output = model(*unnamed, **named)
            loss = output["loss"] if isinstance(output, dict) else output.mean()
        loss.backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
    return time.perf_counter() - begin_s


def measure(model: str, precision: str, optimizer: str, device: str, batch: str) -> dict[str, Any]:
    """Peak and how it was measured."""
    if device == "cuda":
        step_s = train(model, precision, optimizer, device, batch)
        found: dict[str, Any] = {"peak_bytes": torch.cuda.max_memory_allocated()}
        found |= {"reserved_bytes": torch.cuda.max_memory_reserved(), "device": torch.cuda.get_device_name()}
    else:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            step_s = train(model, precision, optimizer, device, batch)
        events = [one for one in profiler.profiler.kineto_results.events() if one.name() == "[memory]"]
        totals = itertools.accumulate(one.nbytes() for one in sorted(events, key=lambda one: one.start_ns()))
        found = {"peak_bytes": max(totals), "memory_events": len(events)}
    return {**found, "step_s": round(step_s, 3), "torch": torch.__version__}


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:6])))
