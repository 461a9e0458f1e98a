"""One of two ranks of benchmarks/link_choice.py; ``steps ROUNDS OUT`` writes rank 0's times to OUT as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hotloop.change.apply.compression import make_hook, register
from hotloop.core.link_choice import TOPK_RATIO

WIDTH, LAYERS, VOCABULARY, LENGTH = 512, 6, 6144, 128
COST_SIDE, COST_COUNT = 1024, 24
"""Gradients whose compression is timed: so many square matrices, 25 million elements."""
COST_ROUNDS = 6
WARM_ROUNDS = 2
"""DDP lays its buckets out anew after the first."""


class Transformer(nn.Module):
    """25 million parameters; [batch, length] tokens -> [batch, length, vocabulary]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        out: torch.Tensor = self.head(self.blocks(self.embedding(tokens), mask=mask, is_causal=True))
        return out


class Way:
    """A model that sends its gradients by one way, its optimizer, and the steps of it so far."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.name = name
        self.model = DistributedDataParallel(Transformer())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        if name not in ("none", "no exchange"):
            register(self.model, make_hook(name, ratio=TOPK_RATIO))

    def make_step(self, tokens: torch.Tensor) -> tuple[int, int]:
        """ns of the whole step and of its backward."""
        begin_ns = time.perf_counter_ns()
        with self.model.no_sync() if self.name == "no exchange" else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            middle_ns = time.perf_counter_ns()
            loss.backward()
            end_ns = time.perf_counter_ns()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter_ns() - begin_ns, end_ns - middle_ns


def list_ways() -> list[str]:
    return ["none", "no exchange", "bf16", "int8", "topk"]


def time_steps(rounds: int) -> dict[str, Any]:
    """A row for each step of each way, in turns; the slowest rank's time."""
    ways = [Way(name) for name in list_ways()]
    draws = torch.Generator().manual_seed(dist.get_rank())
    rows: list[dict[str, Any]] = []
    for turn in range(rounds + WARM_ROUNDS):
        for way in ways if turn % 2 == 0 else ways[::-1]:
            tokens = torch.randint(VOCABULARY, (1, LENGTH + 1), generator=draws)
            dist.barrier()
            taken = torch.tensor(way.make_step(tokens))
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            if turn >= WARM_ROUNDS:
                step_ns, backward_ns = taken.tolist()
                rows.append({"way": way.name, "step_ns": step_ns, "backward_ns": backward_ns})
    alone = [row for row in rows if row["way"] == "no exchange"]
    quickest = min(alone, key=lambda row: row["step_ns"])
    sizes = [int(size) for size in ways[0].model._get_ddp_logging_data()["bucket_sizes"].split(",")]
    rebuilt = ways[0].model._get_ddp_logging_data().get("rebuilt_bucket_sizes")
    return {
        "parameters": sum(one.numel() for one in ways[0].model.parameters()),
        "tensors": len(list(ways[0].model.parameters())),
        "bucket_bytes": [int(size) for size in rebuilt.split(",")] if rebuilt else sizes,
        "backward_ratio": quickest["backward_ns"] / quickest["step_ns"],
        "rows": rows,
    }


class FakeBucket:
    """What a hook reads of torch.distributed.GradBucket."""

    def __init__(self) -> None:
        self.members = [torch.empty(COST_SIDE, COST_SIDE) for _ in range(COST_COUNT)]
        self.flat = torch.randn(COST_COUNT * COST_SIDE * COST_SIDE)
        self.start = self.flat.clone()

    def index(self) -> int:
        return 0

    def buffer(self) -> torch.Tensor:
        return self.flat

    def parameters(self) -> list[torch.Tensor]:
        return self.members

    def gradients(self) -> list[torch.Tensor]:
        parts = self.flat.split(COST_SIDE * COST_SIDE)
        return [part.view(COST_SIDE, COST_SIDE) for part in parts]

    def is_last(self) -> bool:
        return True


def measure_costs() -> dict[str, Any]:
    """CPU ns for each element of a hook's whole work in a group of one rank, over sending it as it is; in turns."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        bucket = FakeBucket()
        count = bucket.flat.numel()
        hooks = {name: make_hook(name, ratio=TOPK_RATIO) for name in ("bf16", "int8", "topk")}
        calls: dict[str, Callable[[], Any]] = {
            name: (lambda hook=hook: hook.send(bucket).wait()) for name, hook in hooks.items()
        }
        calls["none"] = lambda: dist.all_reduce(bucket.flat.div_(1))
        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(COST_ROUNDS):
            for name, call in calls.items():
                bucket.flat.copy_(bucket.start)
                begin_ns = time.process_time_ns()
                call()
                if turn:
                    times[name].append((time.process_time_ns() - begin_ns) / count)
        dist.destroy_process_group()
    least = {name: min(some) for name, some in times.items()}
    over = {name: round(value - least["none"], 3) for name, value in least.items() if name != "none"}
    return {"elements": count, "ns_per_element": over, "times_ns_per_element": times}


def main(words: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        found = time_steps(int(words[1]))
    finally:
        dist.destroy_process_group()
    if int(os.environ["RANK"]) == 0:
        Path(words[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
