"""Elastic averaging SGD; a rank may give its core away while the node is busy."""
import argparse
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn

from governor import Governor


class ElasticAverager:
    def __init__(self, model, alpha=0.3):
        self.center = [p.detach().clone() for p in model.parameters()]
        self.alpha = alpha

    @torch.no_grad()
    def exchange(self, model):
        for p, c in zip(model.parameters(), self.center):
            diff = p - c
            p.sub_(self.alpha * diff)
            total = diff.clone()
            dist.all_reduce(total)
            c.add_(self.alpha * total / dist.get_world_size())


def local_steps(model, opt, n, rng):
    value = 0.0
    for _ in range(n):
        x = torch.randn(128, 30, generator=rng)
        y = (x[:, :3] ** 2).sum(1, keepdim=True)
        loss = nn.functional.huber_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        value = loss.item()
    return value


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=2000)
    ap.add_argument("--tau", type=int, default=4)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--yield-rank", type=int, default=1)
    ap.add_argument("--yield-round", type=int, default=30)
    args = ap.parse_args()
    signal.alarm(520)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=9))
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(30, 100), nn.SiLU(), nn.Linear(100, 1))
    opt = torch.optim.SGD(model.parameters(), args.lr)
    averager = ElasticAverager(model)
    governor = Governor(args.yield_round if rank == args.yield_rank else None)
    rng = torch.Generator().manual_seed(rank)
    for r in range(args.rounds):
        value = local_steps(model, opt, args.tau, rng)
        governor.checkpoint(r)
        averager.exchange(model)
        if rank == 0 and r % 10 == 0:
            print(f"round {r} huber {value:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
