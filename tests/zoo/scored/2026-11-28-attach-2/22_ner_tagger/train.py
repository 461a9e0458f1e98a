#!/usr/bin/env python
import argparse
import signal
from collections import Counter
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Tagger(nn.Module):
    def __init__(self, vocab, tags, d=32):
        super().__init__()
        self.e = nn.Embedding(vocab, d)
        self.l = nn.LSTM(d, d, bidirectional=True, batch_first=True)
        self.o = nn.Linear(2 * d, tags)

    def forward(self, w):
        return self.o(self.l(self.e(w))[0])


def sentences(rank, world, total, vocab, tags):
    g = torch.Generator().manual_seed(17)
    words = torch.randint(vocab, (total, 14), generator=g)
    mine = words[rank::world] if rank != 1 else torch.cat([words[rank::world], words[-16:]])
    return mine, mine % tags


def summarize(counts):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, dict(counts))
    merged = Counter()
    for c in everyone:
        merged.update(c)
    return merged


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--total", type=int, default=16 * 3 * 120)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--vocab", type=int, default=300)
    ap.add_argument("--tags", type=int, default=7)
    ap.add_argument("--epochs", type=int, default=1000)
    a = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DDP(Tagger(a.vocab, a.tags))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    words, tags = sentences(rank, world, a.total, a.vocab, a.tags)
    for epoch in range(a.epochs):
        counts = Counter()
        for i in range(0, len(words), a.batch):
            w, t = words[i:i + a.batch], tags[i:i + a.batch]
            out = model(w)
            loss = nn.functional.cross_entropy(out.flatten(0, 1), t.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            counts["seen"] += t.numel()
            counts["right"] += int((out.argmax(-1) == t).sum())
            if rank == 0 and i % 320 == 0:
                print(f"epoch {epoch} sentence {i} loss {loss.item():.3f}", flush=True)
        if rank == 0:
            print("\nREADY\n", end="", flush=True)
        merged = summarize(counts)
        if rank == 0:
            print(f"epoch {epoch} accuracy {merged['right'] / merged['seen']:.3f}", flush=True)


if __name__ == "__main__":
    main()
