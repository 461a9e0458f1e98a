"""Seq2seq (GRU with attention) on a synthetic transduction task, two data-parallel ranks.

torchrun --standalone --nproc-per-node 2 nmt_ddp.py
"""
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, LENGTH = 2000, 10
BOS = 1


def make_pairs(n, g):
    """Target: source reversed and shifted by a class-dependent offset."""
    src = torch.randint(2, 64, (n, LENGTH), generator=g)
    offset = src[:, :1] % 7
    tgt = (src.flip(1) + offset) % 62 + 2
    return src, tgt


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)

    def forward(self, src):
        return self.rnn(self.embed(src))


class Decoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.mix = nn.Linear(2 * dim, dim)
        self.out = nn.Linear(dim, 64)

    def forward(self, memory, state, tokens):
        h, _ = self.rnn(self.embed(tokens), state)
        ctx = F.scaled_dot_product_attention(h, memory, memory)
        return self.out(torch.tanh(self.mix(torch.cat([h, ctx], dim=-1))))


class Seq2Seq(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.encoder = Encoder(dim)
        self.decoder = Decoder(dim)

    def forward(self, src, tgt):
        memory, state = self.encoder(src)
        bos = torch.full((len(src), 1), BOS, dtype=torch.long)
        logits = self.decoder(memory, state, torch.cat([bos, tgt[:, :-1]], dim=1))
        return F.cross_entropy(logits.flatten(0, 1), tgt.flatten())


class Batches:
    def __init__(self, src, tgt, batch, rank, world, seed):
        self.src, self.tgt, self.batch = src[rank::world], tgt[rank::world], batch
        self.g = torch.Generator().manual_seed(seed + rank)

    def __iter__(self):
        while True:
            order = torch.randperm(len(self.src), generator=self.g)
            for i in range(0, len(order) - self.batch + 1, self.batch):
                rows = order[i:i + self.batch]
                yield self.src[rows], self.tgt[rows]


def train(updates=75, accumulate=8, micro_batch=8, lr=2e-3, seed=31):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    src, tgt = make_pairs(8192, torch.Generator().manual_seed(seed))
    model = DDP(Seq2Seq())
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
    stream = iter(Batches(src, tgt, micro_batch, rank, world, seed))
    t0 = time.time()
    for update in range(updates):
        optimizer.zero_grad()
        total = 0.0
        for micro in range(accumulate):
            s, t = next(stream)
            with nullcontext() if micro == accumulate - 1 else model.no_sync():
                loss = model(s, t) / accumulate
                loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 0 and update % 10 == 0:
            print(f"update {update} loss {total:.4f} {time.time() - t0:.1f}s", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        train(updates=int(os.environ.get("UPDATES", 75)))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
