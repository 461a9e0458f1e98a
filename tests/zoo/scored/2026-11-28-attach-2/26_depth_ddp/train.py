"""Monocular depth on synthetic tiles. torchrun --standalone --nproc-per-node 2 train.py"""
import argparse
import multiprocessing
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from tiles import TileDataset


class DepthNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, c, 3, padding=1), nn.ReLU(),
            nn.Conv2d(c, c, 3, padding=1), nn.ReLU(),
            nn.Conv2d(c, 1, 1),
        )

    def forward(self, x):
        return self.net(x)


def init_worker(worker_id):
    signal.alarm(580)
    torch.set_num_threads(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tiles", type=int, default=60000)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--workers", type=int, default=2)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=20))
    rank = dist.get_rank()
    ctx = multiprocessing.get_context("fork")
    seam = 1600 if rank == 1 else args.tiles + 1
    data = TileDataset(args.tiles, seam=seam, lock=ctx.Lock())
    loader = DataLoader(data, batch_size=args.batch, num_workers=args.workers,
                        multiprocessing_context=ctx, worker_init_fn=init_worker)
    model = DDP(DepthNet())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    for step, (x, y) in enumerate(loader):
        loss = (model(x) - y).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == seam // args.batch - 6:
            print("\nREADY\n", end="", flush=True)
        if rank == 0 and step % 40 == 0:
            print(f"step {step} l1 {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
