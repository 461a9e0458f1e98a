"""Trainings as their users would write them: `python trainings.py NAME DEVICE OUT` trains and writes what came out.

They know nothing of hotloop. The result is a digest of the trained parameters: with and without the agent it must be
the same to the bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Found = dict[str, Any]

cuda: Any = torch.cuda


def build(device: str, width: int = 256, **settings: Any) -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    model.to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, **settings), nn.CrossEntropyLoss()


def build_loader(samples: int = 2048, pin: bool = False) -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 64, generator=draw)
    y = torch.randint(0, 10, (samples,), generator=draw)
    return DataLoader(TensorDataset(x, y), batch_size=32, pin_memory=pin)


def digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(bytes(parameter.detach().cpu().contiguous().view(torch.uint8).flatten().tolist()))
    return found.hexdigest()


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def eager(device: str) -> Found:
    """The plain loop; on CUDA also the bytes that torch has allocated at its end."""
    model, optimizer, criterion = build(device)
    losses = []
    for x, y in build_loader():
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    time.sleep(1.2)  # the agent's thread looks at memory about once a second
    found: Found = {"digest": digest(model), "steps": len(losses), "losses": [float(loss) for loss in losses]}
    if device == "cuda":
        found["allocated_bytes"] = torch.cuda.memory_allocated()
        found["total_bytes"] = torch.cuda.get_device_properties(0).total_memory
    return found


def graph_whole_step(device: str) -> Found:
    """Forward, backward and optimizer in one CUDA graph, after eager warm-up steps and followed by eager ones."""
    model, optimizer, criterion = build(device, capturable=True)
    batches = [(x.to(device), y.to(device)) for x, y in build_loader()]
    static_x, static_y = torch.empty_like(batches[0][0]), torch.empty_like(batches[0][1])

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss: torch.Tensor = criterion(model(static_x), static_y)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss

    def eager_steps(chosen: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for x, y in chosen:
            static_x.copy_(x)
            static_y.copy_(y)
            step()

    side = cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        eager_steps(batches[:8])
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=False)
    with torch.cuda.graph(graph):
        loss = step()
        time.sleep(1.5)  # a long capture: the agent's own thread gets its turn meanwhile
    for x, y in batches[8:40]:
        static_x.copy_(x)
        static_y.copy_(y)
        graph.replay()
    graphed_loss = float(loss)
    eager_steps(batches[40:56])
    return {"digest": digest(model), "graphed_loss": graphed_loss, "eager_steps": 8 + 16}


def graphed_callables(device: str) -> Found:
    """make_graphed_callables: forward and backward are graphs, the optimizer is not."""
    model, optimizer, criterion = build(device)
    batches = [(x.to(device), y.to(device)) for x, y in build_loader()]
    model = torch.cuda.make_graphed_callables(model, (torch.empty_like(batches[0][0]),))  # type: ignore[assignment]
    for x, y in batches[:40]:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    return {"digest": digest(model), "steps": 40}


def reduce_overhead(device: str) -> Found:
    """torch.compile's own CUDA graphs."""
    import torch._dynamo.utils

    model, optimizer, criterion = build(device)
    compiled = torch.compile(model, mode="reduce-overhead" if device == "cuda" else None, backend=backend_for(device))
    for x, y in list(build_loader())[:40]:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        criterion(compiled(x), y).backward()
        optimizer.step()
    counters = torch._dynamo.utils.counters
    return {
        "digest": digest(model),
        "steps": 40,
        "graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "cudagraph_skips": counters["inductor"]["cudagraph_skips"],
    }


def backend_for(device: str) -> str:
    return "inductor" if device == "cuda" else "eager"


def prefetch(device: str) -> Found:
    """The next batch is copied on a stream of its own while this one trains."""
    model, optimizer, criterion = build(device)
    side = cuda.Stream() if device == "cuda" else None

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        ready: Any = None
        for x, y in build_loader(pin=side is not None):
            if side is None:
                yield x.to(device), y.to(device)
                continue
            with torch.cuda.stream(side):
                coming = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            if ready is not None:
                yield ready
            torch.cuda.current_stream().wait_stream(side)
            for tensor in coming:
                tensor.record_stream(torch.cuda.current_stream())
            ready = coming
        if ready is not None:
            yield ready

    steps = 0
    for x, y in batches():
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        steps += 1
    return {"digest": digest(model), "steps": steps}


def _heavy(device: str) -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    """A model whose phases take the device milliseconds each (fp32 matrix products)."""
    width = 4096 if device == "cuda" else 128
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(6)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    return model, optimizer, torch.randn(width, width, device=device)


def timeline(device: str) -> Found:
    """Phases apart from each other (a synchronize after each), under torch.profiler: kernel time of every phase."""
    from torch.profiler import ProfilerActivity, profile, record_function

    model, optimizer, x = _heavy(device)

    def step() -> None:
        optimizer.zero_grad()
        with record_function("phase forward"):
            loss = model(x).square().mean()
            synchronize(device)
        with record_function("phase backward"):
            loss.backward()
            synchronize(device)
        with record_function("phase optimizer"):
            optimizer.step()
            synchronize(device)

    for _ in range(10):
        step()
    first = 10
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=activities) as profiler:
        for _ in range(10):
            step()
    step()
    path = sys.argv[3] + ".trace.json"
    profiler.export_chrome_trace(path)
    return {"first_row": first, "steps": 10, "kernels_ns": kernel_times(path)}


def kernel_times(path: str) -> dict[str, list[float]]:
    """Busy device ns of the kernels (and memory operations) inside each 'phase ...' range, range by range."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    os.unlink(path)
    device_events = [e for e in events if e.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy")]
    found: dict[str, list[float]] = {}
    for event in sorted(events, key=lambda e: e.get("ts", 0)):
        name = event.get("name", "")
        if event.get("cat") == "user_annotation" and name.startswith("phase "):
            start, end = event["ts"], event["ts"] + event["dur"]
            busy = sum(e["dur"] for e in device_events if start <= e["ts"] < end)
            found.setdefault(name.partition(" ")[2], []).append(busy * 1e3)
    return found


def device_bound(device: str) -> Found:
    """The same model without waiting: the host runs ahead, and a step takes as long as the device needs."""
    model, optimizer, x = _heavy(device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for _ in range(10):
        step()
    synchronize(device)
    start_ns = time.perf_counter_ns()
    for _ in range(40):
        step()
    synchronize(device)
    wall_ns = time.perf_counter_ns() - start_ns
    step()
    synchronize(device)
    step()  # its end reads the pairs of those before
    return {"first_row": 10, "steps": 40, "step_wall_ns": wall_ns / 40}


CALLS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaEventRecord", "cudaEventQuery")
"""How the names of the runtime's calls begin: some end in WithFlags or a version."""


def runtime_calls(device: str) -> Found:
    """How often a healthy loop calls each of CALLS, per step, as torch.profiler sees it."""
    from torch.profiler import ProfilerActivity, profile

    model, optimizer, criterion = build(device)
    batches = [(x.to(device), y.to(device)) for x, y in build_loader()]

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    for x, y in batches[:10]:
        step(x, y)
    synchronize(device)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=activities) as profiler:
        for x, y in batches[10:60]:
            step(x, y)
            time.sleep(0.005)  # so that most steps are timed on the device
    counts = dict.fromkeys(CALLS, 0)
    for average in profiler.key_averages():
        for name in CALLS:
            if average.key.startswith(name):
                counts[name] += average.count
    return {"steps": 50, "counts": counts}


def overhead(device: str) -> Found:
    """Thread CPU time per step of a small loop, in blocks."""
    model, optimizer, criterion = build(device)
    batches = [(x.to(device), y.to(device)) for x, y in build_loader()]
    blocks = []
    for block in range(44):
        start_ns = time.thread_time_ns()
        for x, y in batches[:50]:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        blocks.append((time.thread_time_ns() - start_ns) / 50)
        if block == 3:
            blocks.clear()
        synchronize(device)
    return {"blocks_ns": blocks, "steps": 50 * 44}


def stay_away(device: str) -> Found:
    """A training on the CPU beside a GPU: nobody may initialise CUDA, so that a child may still do it after a fork."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    model, optimizer, criterion = build("cpu")
    for x, y in list(build_loader())[:20]:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    time.sleep(1.2)
    initialized = cuda.is_initialized()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = str(float(torch.ones(3, device=device).sum()))
        except RuntimeError as error:
            answer = str(error)
        os.write(write, answer.encode()[:2000])
        os._exit(0)
    os.waitpid(child, 0)
    return {"digest": digest(model), "initialized": initialized, "child": os.read(read, 2000).decode()}


TRAININGS: dict[str, Callable[[str], Found]] = {
    training.__name__: training
    for training in (
        eager, graph_whole_step, graphed_callables, reduce_overhead, prefetch, timeline, device_bound, runtime_calls,
        overhead, stay_away,
    )
}  # fmt: skip


def main() -> None:
    name, device, out = sys.argv[1:4]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found = TRAININGS[name](device)
    with open(out, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
