"""Protein family classification; sequences come sorted by length from the database."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class FamilyNet(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(26, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.cls = nn.Linear(d, 15)

    def forward(self, seqs):
        h, _ = self.rnn(self.emb(seqs))
        return self.cls(h.mean(1))


def database(n, short, long, skew):
    """List of (sequence, family), ascending length."""
    g = torch.Generator().manual_seed(3)
    lengths = (short + (long - short) * torch.linspace(0, 1, n) ** skew).round().long().tolist()
    return [(torch.randint(1, 26, (ln,), generator=g), i % 15) for i, ln in enumerate(lengths)]


def shard(db, rank, world, interleave):
    if interleave:
        return db[rank::world]
    part = len(db) // world
    return db[rank * part:(rank + 1) * part]


def batch_plan(n, bs, seed):
    # consecutive items have about the same length, so little is lost to padding
    g = torch.Generator().manual_seed(seed)
    starts = list(range(0, n - bs + 1, bs))
    return [starts[i] for i in torch.randperm(len(starts), generator=g)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=150)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    short, long, skew = {1: (55, 115, 1), 2: (10, 160, 1), 3: (6, 260, 4)}[args.level]
    mine = shard(database(3200, short, long, skew), rank, world, interleave=args.fixed)
    model = DDP(FamilyNet())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    bs, step, epoch = 16, 0, 0
    while step < args.steps:
        for s in batch_plan(len(mine), bs, seed=epoch):  # same order of starts on both ranks
            items = mine[s:s + bs]
            x = nn.utils.rnn.pad_sequence([q for q, _ in items], batch_first=True)
            y = torch.tensor([f for _, f in items])
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if rank == 0 and step % 50 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)
            if step == args.steps:
                break
        epoch += 1
    dist.barrier()
    time.sleep(0.5)  # let the gloo threads finish before they are torn down
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
