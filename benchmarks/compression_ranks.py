"""One of two ranks of benchmarks/compression.py: `steps` times trainings side by side, `runs` makes one short one.

    steps METHODS ROUNDS OUT    a 25 million parameter transformer; each round makes one step by every method in turn
    runs METHOD STEPS OUT       a small model in many buckets; whether the replicas ended with the same bits

What rank 0 found goes to OUT as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hotloop.apply.compression import make_hook, register

WIDTH, LAYERS, VOCABULARY, LENGTH = 512, 6, 6144, 128
SMALL_BUCKET_MB = 0.3


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


def wrap(model: nn.Module, method: str, **options: Any) -> DistributedDataParallel:
    wrapped = DistributedDataParallel(model, **options)
    if method != "plain":
        register(wrapped, make_hook(method))
    return wrapped


def sent_bytes() -> int:
    name = os.environ["GLOO_SOCKET_IFNAME"]
    return int(Path(f"/sys/class/net/{name}/statistics/tx_bytes").read_text())


def time_steps(methods: list[str], rounds: int) -> dict[str, Any]:
    """Time and sent bytes of every step. The first two rounds are not counted: DDP lays its buckets out anew."""
    models = {}
    for method in methods:
        torch.manual_seed(0)
        models[method] = wrap(Transformer(), method)
    parameters = sum(one.numel() for one in models[methods[0]].parameters())
    draws = torch.Generator().manual_seed(dist.get_rank())
    found: dict[str, Any] = {"parameters": parameters, "rows": []}
    for turn in range(rounds + 2):
        order = methods if turn % 2 == 0 else methods[::-1]
        for method in order:
            tokens = torch.randint(VOCABULARY, (1, LENGTH + 1), generator=draws)
            model = models[method]
            model.zero_grad()
            dist.barrier()
            before, begin_ns, cpu_ns = sent_bytes(), time.perf_counter_ns(), time.process_time_ns()
            loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            cpu_ns = time.process_time_ns() - cpu_ns
            taken_ns = time.perf_counter_ns() - begin_ns
            dist.barrier()
            if turn >= 2:
                row = {"method": method, "step_ns": taken_ns, "cpu_ns": cpu_ns, "sent_bytes": sent_bytes() - before}
                found["rows"].append(row)
    return found


def make_run(method: str, steps: int) -> dict[str, Any]:
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.Tanh())]
    model = wrap(nn.Sequential(*layers), method, bucket_cap_mb=SMALL_BUCKET_MB)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 256, generator=draws)).square().mean().backward()
        optimizer.step()
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    both = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(both, weights)
    return {"are_equal": torch.equal(both[0], both[1]), "buckets": len(buckets_of(model))}


def buckets_of(model: DistributedDataParallel) -> list[str]:
    sizes = model._get_ddp_logging_data().get("rebuilt_bucket_sizes") or ""
    return [one for one in str(sizes).split(",") if one.strip()]


def main(what: str, given: str, count: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = time_steps(given.split(","), int(count)) if what == "steps" else make_run(given, int(count))
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
