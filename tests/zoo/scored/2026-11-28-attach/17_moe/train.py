"""Expert-parallel toy MoE; the owner of the router refits its centroids now and then."""
import argparse
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn


class Router:
    def __init__(self, dim, experts, seed):
        g = torch.Generator().manual_seed(seed)
        self.centroids = torch.randn(experts, dim, generator=g)

    def assign(self, x):
        return torch.cdist(x, self.centroids).argmin(1)

    def refit(self, points, iters, budget):
        """Lloyd iterations over all tokens seen so far."""
        end = time.monotonic() + budget
        for _ in range(iters):
            owner = self.assign(points)
            for k in range(len(self.centroids)):
                mine = points[owner == k]
                if len(mine):
                    self.centroids[k] = mine.mean(0)
            if time.monotonic() > end:
                break


class MoE(nn.Module):
    def __init__(self, dim, experts):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(experts))

    def forward(self, x, owner):
        out = torch.zeros_like(x)
        for k, e in enumerate(self.experts):
            sel = owner == k
            out[sel] = e(x[sel])
        return out


def reduce_grads(model):
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--experts", type=int, default=24)
    ap.add_argument("--refit-every", type=int, default=40)
    ap.add_argument("--refit-seconds", type=float, default=35)
    ap.add_argument("--steps", type=int, default=500)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    rank = dist.get_rank()
    router = Router(args.dim, args.experts, seed=1)
    torch.manual_seed(0)
    model = MoE(args.dim, args.experts)
    opt = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(1, args.steps + 1):
        x = torch.randn(256, args.dim)
        loss = (model(x, router.assign(x)) - x.roll(1, 1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        reduce_grads(model)
        opt.step()
        if step % args.refit_every == 0:
            if rank == 1:
                if step == args.refit_every:
                    print("READY", flush=True)
                pool = torch.randn(120000, args.dim)
                router.refit(pool, 10000, args.refit_seconds)
            dist.broadcast(router.centroids, src=1)
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
