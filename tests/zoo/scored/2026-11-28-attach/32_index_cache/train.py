"""Retrieval training: each rank keeps its neighbour index in a locked cache file."""
import argparse
import os
import pathlib
import signal
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn

from index_cache import IndexCache, start_builder


class TwoTower(nn.Module):
    def __init__(self, d=24, h=64):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(d, h), nn.Tanh(), nn.Linear(h, 16))
        self.k = nn.Sequential(nn.Linear(d, h), nn.Tanh(), nn.Linear(h, 16))

    def forward(self, a, b):
        return self.q(a) @ self.k(b).T


def allreduce_mean(params):
    ws = dist.get_world_size()
    for p in params:
        dist.all_reduce(p.grad)
        p.grad.mul_(1.0 / ws)


def train(cfg, rank, cache):
    net = TwoTower()
    opt = torch.optim.RMSprop(net.parameters(), 1e-3)
    for step in range(cfg.steps):
        a = torch.randn(64, 24)
        b = a + 0.3 * torch.randn_like(a)
        loss = nn.functional.cross_entropy(net(a, b), torch.arange(64))
        opt.zero_grad()
        loss.backward()
        allreduce_mean(list(net.parameters()))
        opt.step()
        if step % cfg.refresh == 0:
            if step == cfg.rebuild_at and rank == cfg.builder:
                start_builder(cache.path)
                print("READY", flush=True)
            cache.store(net.k(b).detach())
        if rank == 0 and step % 20 == 0:
            print(f"{step}: {loss.item():.3f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=4000)
    ap.add_argument("--refresh", type=int, default=20)
    ap.add_argument("--rebuild-at", type=int, default=80)
    ap.add_argument("--builder", type=int, default=2)
    cfg = ap.parse_args()
    signal.alarm(570)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=9))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    root = pathlib.Path(tempfile.gettempdir()) / f"idx_{os.getppid()}"
    root.mkdir(exist_ok=True)
    train(cfg, rank, IndexCache(root / f"index_{rank}.bin"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
