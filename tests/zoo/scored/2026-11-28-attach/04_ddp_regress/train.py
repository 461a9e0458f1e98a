import argparse
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class ResBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.a = nn.Conv2d(ch, ch, 3, padding=1)
        self.b = nn.Conv2d(ch, ch, 3, padding=1)
        self.n = nn.GroupNorm(4, ch)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.n(x))))


class HeatmapRegressor(nn.Module):
    def __init__(self, ch=24, depth=3):
        super().__init__()
        self.stem = nn.Conv2d(1, ch, 5, padding=2)
        self.blocks = nn.Sequential(*[ResBlock(ch) for _ in range(depth)])
        self.head = nn.Conv2d(ch, 1, 1)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.model = DDP(HeatmapRegressor())
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.gen = torch.Generator().manual_seed(100 + self.rank)
        self.step = 0

    def batch(self):
        x = torch.randn(self.args.batch, 1, 40, 40, generator=self.gen)
        return x, torch.nn.functional.avg_pool2d(x, 5, 1, 2)

    def train_step(self):
        x, y = self.batch()
        loss = (self.model(x) - y).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.step += 1
        return loss.item()

    def fit(self):
        t0 = time.time()
        while self.step < self.args.max_steps:
            loss = self.train_step()
            if self.rank == 0 and self.step == 25:
                print("READY", flush=True)
            if self.rank == 0 and self.step % 50 == 0:
                rate = self.step / (time.time() - t0)
                print(f"{self.step} loss {loss:.4f} {rate:.1f} it/s", flush=True)
            stop = torch.tensor(float(time.time() - t0 > 60 * self.args.minutes))
            dist.all_reduce(stop)
            if stop > 0:
                break


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--max-steps", type=int, default=100000)
    ap.add_argument("--minutes", type=float, default=8.5)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    torch.manual_seed(int(os.environ.get("SEED", 1)))
    Trainer(args).fit()
    dist.destroy_process_group()
