"""Distributed training of a depthwise-separable time-series classifier (torchrun, gloo)."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class SepBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dw = nn.Conv1d(dim, dim, 5, padding=2, groups=dim)
        self.norm = nn.GroupNorm(4, dim)
        self.up = nn.Conv1d(dim, 2 * dim, 1)
        self.down = nn.Conv1d(2 * dim, dim, 1)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(self.dw(x)))))


class Net(nn.Module):
    def __init__(self, sensors, dim, depth, classes):
        super().__init__()
        self.stem = nn.Conv1d(sensors, dim, 7, stride=2, padding=3)
        self.blocks = nn.Sequential(*[SepBlock(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean(-1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=180)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--depth", type=int, default=20)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--length", type=int, default=96)
    ap.add_argument("--bucket-mb", type=float, default=0.01)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    protos = torch.randn(8, 9, args.length)
    model = DDP(Net(9, args.dim, args.depth, 8), bucket_cap_mb=args.bucket_mb, gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    torch.manual_seed(100 + rank)
    labels = torch.randint(0, 8, (2000,))
    signals = protos[labels] + 2 * torch.randn(2000, 9, args.length)

    start = time.time()
    running = torch.zeros(())
    for step in range(1, args.steps + 1):
        idx = torch.randint(0, len(signals), (args.batch,))
        loss = F.cross_entropy(model(signals[idx]), labels[idx])
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        running += loss.detach()
        if step % 90 == 0 and rank == 0:
            print(f"step {step} loss {running.item() / 90:.4f} {time.time() - start:.1f}s", flush=True)
            running.zero_()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
