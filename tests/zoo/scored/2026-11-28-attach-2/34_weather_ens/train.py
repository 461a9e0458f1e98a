"""Ensemble weather emulator. One rank rolls out the ensemble to score it, the others wait."""
import argparse
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from verification import EnsembleScore


class Emulator(nn.Module):
    def __init__(self, vars=4, c=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(vars, c, 5, padding=2, padding_mode="circular"), nn.GELU(),
            nn.Conv2d(c, c, 5, padding=2, padding_mode="circular"), nn.GELU(),
            nn.Conv2d(c, vars, 1),
        )

    def forward(self, x):
        return x + 0.1 * self.net(x)


def states(n, g):
    x = torch.randn(n, 4, 32, 48, generator=g)
    return nn.functional.avg_pool2d(x, 3, 1, 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--score-every", type=int, default=50)
    ap.add_argument("--scorer", type=int, default=2)
    ap.add_argument("--starts", type=int, default=400)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    g = torch.Generator().manual_seed(rank)
    net = Emulator()
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    score = EnsembleScore(members=10, lead=24, starts=args.starts)
    step = 0
    while True:
        x = states(8, g)
        loss = nn.functional.mse_loss(model(x), x.roll(1, -1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if rank == 0 and step % 10 == 0:
            print(f"{time.strftime('%X')} step {step} mse {loss.item():.5f}", flush=True)
        if step % args.score_every == 0:
            if rank == args.scorer:
                if step == args.score_every:
                    print("\nREADY\n", end="", flush=True)
                print(f"step {step} crps {score(net, g):.4f}", flush=True)
            dist.barrier()


if __name__ == "__main__":
    main()
