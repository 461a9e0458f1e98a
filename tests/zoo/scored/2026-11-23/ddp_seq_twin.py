"""Protein-like sequence labelling on two ranks; batches of similar length."""
import argparse
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence

IGNORE = -100


def make_sequences(n, seed):
    rng = random.Random(seed)
    g = torch.Generator().manual_seed(seed)
    seqs = []
    for _ in range(n):
        length = int(min(170, max(24, rng.gauss(80, 36))))
        seqs.append(torch.randint(1, 25, (length,), generator=g))
    return seqs


def shard_batches(seqs, batch_size, rank, world):
    order = sorted(range(len(seqs)), key=lambda i: len(seqs[i]))
    batches = [order[i:i + batch_size] for i in range(0, len(order) - batch_size + 1, batch_size)]
    return batches[rank:len(batches) // world * world:world]


def collate(seqs, batch):
    ids = pad_sequence([seqs[i] for i in batch], batch_first=True)
    labels = torch.where(ids > 0, (ids + ids.roll(1, 1)) % 3, IGNORE)
    return ids, labels


class Tagger(nn.Module):
    def __init__(self, dim, layers):
        super().__init__()
        self.emb = nn.Embedding(25, dim, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(dim, dim, 7, padding=3) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.out = nn.Linear(dim, 3)

    def forward(self, ids):
        x = self.emb(ids)
        for conv, norm in zip(self.convs, self.norms):
            x = x + F.gelu(conv(norm(x).transpose(1, 2))).transpose(1, 2)
        return self.out(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--sequences", type=int, default=1280)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--dim", type=int, default=128)
    ap.add_argument("--layers", type=int, default=4)
    ap.add_argument("--lr", type=float, default=1e-3)
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(3)
    seqs = make_sequences(a.sequences, 3)
    batches = shard_batches(seqs, a.batch_size, rank, world)
    model = DDP(Tagger(a.dim, a.layers), gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, fused=True)
    start = time.time()
    for epoch in range(a.epochs):
        order = list(range(len(batches)))
        random.Random(epoch).shuffle(order)
        running = torch.zeros(())
        for b in order:
            ids, labels = collate(seqs, batches[b])
            loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.detach()
        if rank == 0:
            print(f"epoch {epoch} loss {running.item() / len(order):.4f} {time.time() - start:.1f}s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
