"""All-reduces of the present DDP buckets and of default ones between processes of this host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hotloop.probe.clock import middle
from hotloop.probe.operators import NotReplayable
from hotloop.probe.request import Part, ProbeRequest, RecordedBuckets

PROGRAM = Path(__file__).resolve().parents[1] / "opportunities.py"
LEAST_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTimes:
    """ns of exchanging all gradients, in ``buckets`` present ones and in ``large_buckets`` of 25 MiB."""

    buckets: int
    large_buckets: int
    ranks: int
    present_ns: int
    large_ns: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def time_buckets(ddp: RecordedBuckets, timeout_s: float) -> BucketTimes:
    """Rank 0's times of both. Raises NotReplayable when a process fails, subprocess.TimeoutExpired."""
    with tempfile.TemporaryDirectory() as folder:
        plan = {"sizes": list(ddp.bucket_sizes), "ranks": ddp.ranks, "store": os.path.join(folder, "store")}
        environment = {"GLOO_SOCKET_IFNAME": "lo"} | os.environ | {"OMP_NUM_THREADS": "1"}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            environment.pop(name, None)
        children = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), "--buckets", json.dumps(plan | {"rank": rank})],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
            for rank in range(ddp.ranks)
        ]
        try:
            outputs = [child.communicate(timeout=timeout_s)[0] for child in children]
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.wait()
    if any(child.returncode for child in children):
        raise NotReplayable("the processes for the bucket measurement failed")
    return BucketTimes(**json.loads(outputs[0]))


def run_buckets(plan: Mapping[str, Any]) -> BucketTimes:
    """One rank of the bucket measurement."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{plan['store']}", rank=plan["rank"], world_size=plan["ranks"])
    sizes = [max(1, size // 4) for size in plan["sizes"]]
    total = sum(sizes)
    cap = 25 * (1 << 20) // 4
    large = [min(cap, total - begin) for begin in range(0, total, cap)]

    def reduce_all(tensors: list[torch.Tensor]) -> None:
        for work in [dist.all_reduce(one, async_op=True) for one in tensors]:
            work.wait()

    arms = {name: [torch.zeros(n) for n in parts] for name, parts in (("present", sizes), ("large", large))}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(9):
        for name, tensors in arms.items():
            dist.barrier()
            begin_ns = time.perf_counter_ns()
            reduce_all(tensors)
            taken = time.perf_counter_ns() - begin_ns
            if turn:
                times[name].append(taken)
    dist.destroy_process_group()
    return BucketTimes(
        buckets=len(sizes),
        large_buckets=len(large),
        ranks=int(plan["ranks"]),
        present_ns=round(middle(times["present"])),
        large_ns=round(middle(times["large"])),
    )


def _measure(request: ProbeRequest, budget_s: float) -> BucketTimes | None:
    return time_buckets(request.ddp, max(LEAST_TIMEOUT_S, budget_s)) if request.ddp else None


BUCKETS = Part(id="buckets", order=6, budget_ratio=2.0, is_wanted=lambda request: bool(request.ddp), measure=_measure)
