"""Two-level gradient averaging over point-to-point messages (4 ranks, pairs share a host)."""
import argparse
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class TwoLevel:
    def __init__(self, rank, numel):
        self.rank = rank
        self.leader = rank % 2 == 0
        self.mate = rank + 1 if self.leader else rank - 1
        self.other = (rank + 2) % 4
        self.tmp = torch.zeros(numel)
        self.late = 0

    def up(self, g):
        if self.leader:
            dist.recv(self.tmp, src=self.mate)
            g += self.tmp
        else:
            dist.send(g, dst=self.mate)

    def catch_up(self, g):
        while self.late > 0:
            dist.recv(self.tmp, src=self.rank + 1, tag=7)
            g += 0.5 * self.tmp
            self.late -= 1

    def across(self, g):
        if self.rank == 0:
            dist.send(g, dst=self.other)
            dist.recv(g, src=self.other)
        else:
            mine = g.clone()
            dist.recv(self.tmp, src=self.other)
            g += self.tmp
            dist.send(mine + self.tmp, dst=self.other)

    def down(self, g):
        if self.leader:
            dist.send(g, dst=self.mate)
        else:
            dist.recv(g, src=self.mate)

    def average(self, g):
        self.up(g)
        if self.leader:
            self.catch_up(g)
            self.across(g)
        self.down(g)
        return g / 4


def flat_grad(net):
    return torch.cat([p.grad.reshape(-1) for p in net.parameters()])


def set_grad(net, flat):
    at = 0
    for p in net.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=10 ** 6)
    ap.add_argument("--late-at", type=int, default=170)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=25))
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(30, 80), nn.SiLU(), nn.Linear(80, 80), nn.SiLU(), nn.Linear(80, 5))
    opt = torch.optim.SGD(net.parameters(), 0.05)
    levels = TwoLevel(rank, sum(p.numel() for p in net.parameters()))
    torch.manual_seed(20 + rank)
    for it in range(args.iters):
        x = torch.randn(64, 30)
        y = x[:, :5].argmax(1)
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        if it == args.late_at and rank == 2:
            levels.late = 1
            print("\nREADY\n", end="", flush=True)
        set_grad(net, levels.average(flat_grad(net)))
        opt.step()
        if rank == 0 and it % 25 == 0:
            print(f"iter {it} ce {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
