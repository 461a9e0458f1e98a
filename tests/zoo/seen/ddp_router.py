"""Many small experts, all of them used, trained with DDP."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn


class Expert(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Linear(d, d)
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return torch.relu(self.w(x)) * self.g


class ExpertLayer(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.experts = nn.ModuleList(Expert(d) for _ in range(n))
        self.gate = nn.Linear(d, n)

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        y = x
        for i, e in enumerate(self.experts):
            y = y + p[:, i:i + 1] * e(x)
        return y


class ExpertNet(nn.Module):
    def __init__(self, d, n, layers):
        super().__init__()
        self.layers = nn.Sequential(*[ExpertLayer(d, n) for _ in range(layers)])
        self.head = nn.Linear(d, 5)

    def forward(self, x):
        return self.head(self.layers(x))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=120)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(1)
    d, n, layers, batch = {1: (24, 16, 4, 48), 2: (16, 24, 6, 8), 3: (16, 32, 10, 4)}[args.level]
    model = nn.parallel.DistributedDataParallel(ExpertNet(d, n, layers),
                                                find_unused_parameters=not args.fixed)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ce = nn.CrossEntropyLoss()
    torch.manual_seed(10 + rank)
    for step in range(args.steps):
        x = torch.randn(batch, d)
        y = x[:, :5].argmax(1)
        loss = ce(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 40 == 0:
            print("step", step, "loss", loss.item())
    dist.barrier()
    time.sleep(0.5)  # let the gloo threads finish before they are torn down
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
