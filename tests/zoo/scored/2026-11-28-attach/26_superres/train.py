"""Super-resolution with an elaborate degradation model, data-parallel."""
import argparse
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from degrade import PatchDataset


class SRNet(nn.Module):
    def __init__(self, ch=16, scale=2):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, ch, 3, 1, 1), nn.ReLU(),
                                  nn.Conv2d(ch, scale * scale, 3, 1, 1))
        self.shuffle = nn.PixelShuffle(scale)

    def forward(self, x):
        return self.shuffle(self.body(x)) + F.interpolate(x, scale_factor=2, mode="bilinear")


def out_of_time(t0, seconds):
    flag = torch.tensor([float(time.time() - t0 > seconds)])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return flag.item() > 0


def train(args):
    rank = dist.get_rank()
    model = DDP(SRNet())
    opt = torch.optim.Adam(model.parameters(), args.lr)
    data = PatchDataset(4000, args.patch, seed=rank, heavy_from=args.heavy_from * args.batch)
    loader = DataLoader(data, batch_size=args.batch)
    t0 = time.time()
    for step, (low, high) in enumerate(loader):
        loss = F.l1_loss(model(low), high)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            if step == args.heavy_from + 3:
                print("READY", flush=True)
            if step % 10 == 0:
                print(f"step {step} l1 {loss.item():.4f}", flush=True)
        if out_of_time(t0, args.seconds):
            break


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--patch", type=int, default=96)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--heavy-from", type=int, default=25)
    ap.add_argument("--seconds", type=float, default=480)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    train(args)
    dist.destroy_process_group()
