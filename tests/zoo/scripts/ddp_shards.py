"""Two-rank sequence training; every rank reads its own list of documents."""

import argparse
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Documents(Dataset):
    def __init__(self, lengths):
        g = torch.Generator().manual_seed(2)
        self.rows = [torch.randint(1, 500, (n,), generator=g) for n in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Reader(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.embed = nn.Embedding(500, width, padding_idx=0)
        self.mix = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width), nn.GELU())
        self.head = nn.Linear(width, 500)

    def forward(self, ids):
        h = self.embed(ids)
        return self.head(self.mix(h) + h.cumsum(1) / ids.shape[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    short, long = {1: (48, 68), 2: (40, 96), 3: (16, 120)}[args.level]
    rng = random.Random(3)
    lengths = [short + rng.randint(-4, 4) for _ in range(512)] + [long + rng.randint(-4, 4) for _ in range(512)]
    if args.fixed:
        mine = lengths[rank::world]
    else:
        mine = lengths[rank * 512 : (rank + 1) * 512]
    loader = DataLoader(Documents(mine), batch_size=16, shuffle=not args.fixed, collate_fn=collate, drop_last=True)
    model = DistributedDataParallel(Reader())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = 0
    while step < args.steps:
        for ids in loader:
            optimizer.zero_grad()
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    if rank == 0:
        print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
