"""Sparse bag-of-words autoencoder on two processes with hand-written averaging."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn


class BagAE(nn.Module):
    def __init__(self, vocab, code, depth):
        super().__init__()
        self.enc = nn.EmbeddingBag(vocab, code, mode="mean")
        self.mid = nn.Sequential(*[nn.Sequential(nn.Linear(code, code), nn.ReLU()) for _ in range(depth)])
        self.dec = nn.Linear(code, 64)

    def forward(self, ids):
        return self.dec(self.mid(self.enc(ids)))


def average_gradients(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad.div_(world)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=130)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(42)
    vocab, code, depth, batch = {1: (2000, 64, 2, 4096), 2: (2000, 64, 4, 2048), 3: (2000, 64, 8, 1280)}[args.level]
    model = BagAE(vocab, code, depth)
    if args.fixed:
        model = nn.parallel.DistributedDataParallel(model)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    g = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        ids = torch.randint(0, vocab, (batch, 20), generator=g)
        goal = torch.nn.functional.one_hot(ids[:, 0] % 64, 64).float()
        loss = (model(ids) - goal).square().mean()
        opt.zero_grad()
        loss.backward()
        if not args.fixed:
            average_gradients(model, world)
        opt.step()
        if step % 50 == 0 and rank == 0:
            print(step, loss.item())
    dist.barrier()
    time.sleep(0.5)  # let the gloo threads finish before they are torn down
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
