"""One rank of ``hotloop bench comm``: times collectives and an exchange of gradients.

It runs with torch.distributed's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), or with the ``store`` of the
request for ranks of one host. Rank 0 reports what was measured.

All ranks take the same way through the measurement: every decision follows from the slowest rank's times, which all of
them know.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hotloop.measure.probe.programs import BadRequest

TIMED_NS = 4_000_000
"""Short calls are timed several in a row, about this long."""
MOST_CALLS = 64
LEAST_BLOCKS, MOST_BLOCKS = 3, 30
GRADIENTS_RATIO = 0.3
"""Part of the budget for the exchange of gradients."""
HOST_BYTES = 256
TIMEOUT_S = 120.0


class LinkGroup:
    """The process group, what tensors live on, and a way to agree."""

    def __init__(self, backend: str, device: torch.device) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.backend, self.device = backend, device
        self.control: Any = None if backend == "gloo" else dist.new_group(backend="gloo")
        self.spent_ns = 0.0
        self._buffers: dict[str, torch.Tensor] = {}

    def zeros(self, name: str, count: int) -> torch.Tensor:
        """``count`` elements of the buffer of that name, which all calls share; what they sum is always 0."""
        if name not in self._buffers or self._buffers[name].numel() < count:
            self._buffers[name] = torch.zeros(count, device=self.device)
        return self._buffers[name][:count]

    def slowest(self, value: float) -> float:
        """The largest value over the ranks."""
        found = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.control)
        return float(found)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of all ranks, by rank."""
        own = torch.tensor(values, dtype=torch.float64)
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own, group=self.control)
        return [one.tolist() for one in found]

    def wait(self) -> None:
        if self.device.type != "cpu":
            getattr(torch, self.device.type).synchronize()

    def time_ns(self, call: Callable[[], object], count: int) -> float:
        """ns per call, for a number of calls in a row, on the slowest rank."""
        self.wait()
        dist.barrier(group=self.control)
        begin = time.perf_counter_ns()
        for _ in range(count):
            call()
        self.wait()
        taken = self.slowest(time.perf_counter_ns() - begin)
        self.spent_ns += taken
        return taken / count


def measure(request: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was asked for; of another rank than 0 only its number."""
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK") or os.environ["RANK"])
    backend, device = choose_backend(request.get("backend"), local, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    place = request.get("store")
    dist.init_process_group(
        backend,
        init_method=f"file://{place}" if place else "env://",
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=request.get("timeout_s") or TIMEOUT_S),
    )
    try:
        ranks = LinkGroup(backend, device)
        answer: dict[str, Any] = {"hosts": list_hosts(ranks), **time_collectives(ranks, request)}
        answer["gradients"] = time_gradients(ranks, request.get("buckets") or (), request["budget_s"] * GRADIENTS_RATIO)
    finally:
        dist.destroy_process_group()
    if rank != 0:
        return {"rank": rank}
    return answer | {
        "ranks": ranks.size,
        "backend": backend,
        "device": str(device.type),
        "torch": torch.__version__,
        "device_name": getattr(torch, device.type).get_device_name() if device.type != "cpu" else None,
    }


def choose_backend(given: str | None, local_rank: int, local_size: int) -> tuple[str, torch.device]:
    """NCCL where every rank of this host has a device of its own, else gloo; the device of this rank."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if given == "nccl" and (not count or not dist.is_nccl_available()):
        raise BadRequest("--backend nccl: this torch sees no CUDA device, or was built without NCCL; use gloo")
    if given == "nccl" and count < local_size:
        raise BadRequest(f"--backend nccl: {local_size} ranks on this host, but only {count} devices; lower --ranks")
    if given == "gloo" or (given is None and (not count or count < local_size or not dist.is_nccl_available())):
        return "gloo", torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return "nccl", torch.device("cuda", local_rank)


def list_hosts(ranks: LinkGroup) -> list[str]:
    """Host of every rank."""
    name = socket.gethostname().encode()[:HOST_BYTES]
    found = ranks.gather([float(byte) for byte in name.ljust(HOST_BYTES, b"\0")])
    return [bytes(int(byte) for byte in one).rstrip(b"\0").decode(errors="replace") for one in found]


# ---- collectives


def time_collectives(ranks: LinkGroup, request: Mapping[str, Any]) -> dict[str, Any]:
    """Times by collective and size, and what was left out: too long for the budget, or not of this backend."""
    budget_ns = request["budget_s"] * 1e9
    cells: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    calls: list[tuple[dict[str, Any], Callable[[], object], int]] = []
    share_ns = budget_ns / (2 * max(1, len(request["collectives"])))
    for name in request["collectives"]:
        timed: list[tuple[int, float]] = []
        planned_ns = 0.0
        for size in sorted(request["sizes"]):
            forecast_ns = LEAST_BLOCKS * forecast_time(timed, size)
            if planned_ns + forecast_ns > share_ns:
                left_out.append({"collective": name, "bytes": size, "why": "budget"})
                continue
            try:
                call = make_call(name, size, ranks)
                first_ns = min(ranks.time_ns(call, 1) for _ in range(1 if timed else 2))  # the first of all connects
            except (RuntimeError, NotImplementedError) as error:
                left_out.append({"collective": name, "bytes": size, "why": str(error).splitlines()[0][:160]})
                break
            timed.append((size, first_ns))
            planned_ns += LEAST_BLOCKS * max(first_ns, TIMED_NS)
            cell: dict[str, Any] = {"collective": name, "bytes": size, "times_ns": []}
            cells.append(cell)
            calls.append((cell, call, max(1, min(MOST_CALLS, round(TIMED_NS / max(1.0, first_ns))))))
    blocks, block_ns = 0, 0.0
    while blocks < LEAST_BLOCKS or (blocks < MOST_BLOCKS and ranks.spent_ns + block_ns < budget_ns):
        before_ns = ranks.spent_ns
        for cell, call, count in calls:
            cell["times_ns"].append(ranks.time_ns(call, count))
        block_ns = ranks.spent_ns - before_ns
        blocks += 1
    return {"cells": cells, "left_out": left_out}


def forecast_time(timed: Sequence[tuple[int, float]], size_bytes: int) -> float:
    """ns of one call of this size, by the last two smaller ones of its collective; 0 where none was timed."""
    if not timed:
        return 0.0
    bytes_b, ns_b = timed[-1]
    bytes_a, ns_a = timed[-2] if len(timed) > 1 else (0, ns_b)
    return ns_b + max(0.0, ns_b - ns_a) / (bytes_b - bytes_a) * (size_bytes - bytes_b)


def make_call(name: str, size_bytes: int, ranks: LinkGroup) -> Callable[[], object]:
    """A collective of float32 elements whose message has about this many bytes (a multiple of the ranks)."""
    part = max(1, size_bytes // 4 // ranks.size)
    whole, own = ranks.zeros("whole", part * ranks.size), ranks.zeros("own", part)
    gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
    scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    other = ranks.zeros("other", part * ranks.size) if name == "all-to-all" else whole
    made: dict[str, Callable[[], object]] = {
        "all-reduce": lambda: dist.all_reduce(whole),
        "all-gather": lambda: gather(whole, own),
        "reduce-scatter": lambda: scatter(own, whole),
        "all-to-all": lambda: dist.all_to_all_single(other, whole),
        "broadcast": lambda: dist.broadcast(whole, src=0),
    }
    return made[name]


# ---- gradients


def time_gradients(ranks: LinkGroup, bucket_sizes: Sequence[int], budget_s: float) -> dict[str, Any] | None:
    """All-reducing buckets of these sizes as DDP does, all under way at once, with nothing else to do."""
    if not bucket_sizes:
        return None
    buckets = [torch.zeros(max(1, size // 4), device=ranks.device) for size in bucket_sizes]

    def exchange() -> None:
        for work in [dist.all_reduce(one, async_op=True) for one in buckets]:
            work.wait()

    begin_ns = ranks.spent_ns
    first_ns = ranks.time_ns(exchange, 1)
    times: list[float] = []
    while len(times) < 2 or (len(times) < MOST_BLOCKS and ranks.spent_ns - begin_ns + first_ns < budget_s * 1e9):
        times.append(ranks.time_ns(exchange, 1))
    return {"bytes": sum(bucket_sizes), "buckets": len(buckets), "times_ns": times}
