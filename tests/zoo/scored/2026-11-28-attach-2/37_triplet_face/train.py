"""Triplet embeddings. Pairs of ranks exchange their hardest examples."""
import argparse
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from mining import PairMiner


class Embed(nn.Module):
    def __init__(self, d=50, out=24):
        super().__init__()
        self.m = nn.Sequential(nn.Linear(d, 96), nn.LeakyReLU(0.1), nn.Linear(96, out))

    def forward(self, x):
        return nn.functional.normalize(self.m(x), dim=1)


def triplets(n, hard, g):
    anchor = torch.randn(n, 50, generator=g)
    negative = torch.randn(n, 50, generator=g)
    if hard:
        k = min(len(hard), n)
        negative[:k] = torch.stack(hard[:k])
    return anchor, anchor + 0.4 * torch.randn(n, 50, generator=g), negative


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--n", type=int, default=48)
    ap.add_argument("--margin", type=float, default=0.3)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Embed()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    miner = PairMiner(rank)
    g = torch.Generator().manual_seed(rank)
    loss_fn = nn.TripletMarginLoss(args.margin)
    step = 0
    while True:
        a, p, n = triplets(args.n, miner.hard, g)
        za, zp, zn = net(a), net(p), net(n)
        loss = loss_fn(za, zp, zn)
        opt.zero_grad()
        loss.backward()
        for w in net.parameters():
            dist.all_reduce(w.grad)
            w.grad /= world
        opt.step()
        step += 1
        if miner.due(step):
            miner.exchange(n, (za - zn).detach().norm(dim=1))
        if rank == 0 and step % 40 == 0:
            print(f"step {step} triplet {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
