"""Frame-level acoustic model; utterance buckets are distributed over the ranks."""
import argparse
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from features import Frontend


class Acoustic(nn.Module):
    def __init__(self, bins=65, states=40):
        super().__init__()
        self.norm = nn.LayerNorm(bins)
        self.gru = nn.GRU(bins, 48, batch_first=True)
        self.out = nn.Linear(48, states)

    def forward(self, feats):
        return self.out(self.gru(self.norm(feats))[0])


class Buckets:
    """Rank r gets bucket r; the last bucket holds the long recordings."""

    def __init__(self, rank, world, short=4000, long=3_000_000):
        self.samples = long if rank == world - 1 else short
        self.short = short
        self.g = torch.Generator().manual_seed(rank)

    def draw(self, warm):
        n = self.short if warm else self.samples
        return torch.randn(n, generator=self.g)


def train(args, rank, world):
    net = DDP(Acoustic())
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    front, buckets = Frontend(args.views), Buckets(rank, world)
    t0 = time.time()
    for step in range(args.steps):
        wave = buckets.draw(warm=step < args.warmup)
        feats = front(wave)
        target = torch.randint(0, 40, feats.shape[:2])
        loss = nn.functional.cross_entropy(net(feats).flatten(0, 1), target.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            if step == args.warmup + 3:
                print("READY", flush=True)
            if step % 5 == 0:
                print(f"step {step} ce {loss.item():.3f} {time.time() - t0:.1f}s", flush=True)
        halt = torch.tensor([float(time.time() - t0 > args.seconds)])
        dist.all_reduce(halt)
        if halt.item():
            return


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=5000)
    ap.add_argument("--warmup", type=int, default=30)
    ap.add_argument("--views", type=int, default=12)
    ap.add_argument("--seconds", type=float, default=480)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    torch.manual_seed(0)
    train(args, dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
