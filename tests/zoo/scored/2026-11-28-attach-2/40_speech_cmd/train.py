"""Keyword spotting; a small tool looks after the memory of the node now and then."""
import argparse
import os
import pathlib
import signal
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

TOOL = pathlib.Path(__file__).resolve().with_name("node_memory.py")


class KWS(nn.Module):
    def __init__(self, words=8, c=24):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv1d(20, c, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(c, c, 5, padding=2), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
        )
        self.o = nn.Linear(c, words)

    def forward(self, mel):
        return self.o(self.f(mel))


def utterances(n, g):
    y = torch.randint(8, (n,), generator=g)
    mel = torch.randn(n, 20, 40, generator=g)
    mel[torch.arange(n), y * 2] += 1.5
    return mel, y


def check_memory(budget_mb):
    subprocess.run([sys.executable, str(TOOL), str(os.getpid()), str(budget_mb)], check=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--check-every", type=int, default=25)
    ap.add_argument("--budgets", type=int, nargs="*", default=[9000, 9000, 64])
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=25))
    rank = dist.get_rank()
    g = torch.Generator().manual_seed(rank)
    model = DDP(KWS())
    opt = torch.optim.SGD(model.parameters(), 0.05)
    budgets = list(args.budgets)
    for step in range(1, 10 ** 6):
        mel, y = utterances(16, g)
        loss = nn.functional.cross_entropy(model(mel), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % args.check_every == 0:
            print(f"step {step} ce {loss.item():.3f}", flush=True)
            budget = budgets.pop(0)
            if not budgets:
                print("\nREADY\n", end="", flush=True)
            check_memory(budget)


if __name__ == "__main__":
    main()
