"""Learning-to-rank with a deep MLP on query/document features (2 processes)."""
import argparse
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Options:
    level: int
    fixed: bool
    steps: int
    features: int = 64
    docs: int = 8


class Scorer(nn.Module):
    def __init__(self, f, width, depth):
        super().__init__()
        dims = [f] + [width] * depth
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))
        self.score = nn.Linear(width, 1)

    def forward(self, x):
        for i, l in enumerate(self.layers):
            h = torch.tanh(l(x))
            x = h if i == 0 else x + h
        return self.score(x).squeeze(-1)


def train(o: Options):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    depth, queries, cap = {1: (32, 96, 0.05), 2: (40, 72, 0.02), 3: (48, 48, 0.01)}[o.level]
    net = Scorer(o.features, 64, depth)
    kw = {} if o.fixed else {"bucket_cap_mb": cap}
    model = DistributedDataParallel(net, **kw)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    torch.manual_seed(rank + 1)
    direction = torch.ones(o.features) / 8
    for step in range(1, o.steps + 1):
        x = torch.randn(queries, o.docs, o.features)
        best = (x @ direction).argmax(1)
        loss = nn.functional.cross_entropy(model(x), best)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 50 == 0:
            print(f"{step}: {loss.item():.4f}")
    dist.barrier()
    time.sleep(0.5)  # let the gloo threads finish before they are torn down
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=140)
    ns = ap.parse_args()
    train(Options(ns.level, ns.fixed, ns.steps))
