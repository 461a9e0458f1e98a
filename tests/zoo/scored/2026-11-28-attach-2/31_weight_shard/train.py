"""Sharded optimiser (each rank updates its part, then sends it round), clip by global norm."""
import argparse
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class ShardedSGD:
    def __init__(self, net, lr, clip):
        self.net, self.lr, self.clip = net, lr, clip
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.skipped = 0

    def _local_norm(self):
        return torch.stack([p.grad.norm() for p in self.net.parameters()]).norm()

    def _scale(self):
        norm = self._local_norm()
        if not torch.isfinite(norm):
            self.skipped += 1
            return 0.0
        square = norm.square()
        dist.all_reduce(square)
        return min(1.0, self.clip / (square.sqrt().item() + 1e-6))

    @torch.no_grad()
    def step(self):
        scale = self._scale()
        for i, layer in enumerate(self.net.layers):
            owner = i % self.world
            if owner == self.rank and scale > 0:
                for p in layer.parameters():
                    p -= self.lr * scale * p.grad
            for p in layer.parameters():
                dist.broadcast(p, src=owner)


class Tower(nn.Module):
    def __init__(self, d=64, n=4):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(d, d) for _ in range(n)])

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--spike-at", type=int, default=140)
    p.add_argument("--spike-rank", type=int, default=2)
    cfg = p.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=20))
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Tower()
    opt = ShardedSGD(net, cfg.lr, cfg.clip)
    torch.manual_seed(31 + rank)
    for step in range(10 ** 6):
        x = torch.randn(32, 64)
        if step == cfg.spike_at and rank == cfg.spike_rank:
            x[0, 0] = float("inf")
        loss = (net(x) - x.flip(1)).pow(2).mean()
        net.zero_grad()
        loss.backward()
        opt.step()
        if step == cfg.spike_at - 1 and rank == 0:
            print("\nREADY\n", end="", flush=True)
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f} skipped {opt.skipped}", flush=True)


if __name__ == "__main__":
    main()
