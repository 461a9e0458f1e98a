"""Fraud scoring on tabular shards. torchrun --standalone --nproc-per-node 3 train.py"""
import argparse
import os
import signal
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from shards import ShardReader, write_shards


class GatedBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.lin = nn.Linear(d, 2 * d)
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        a, b = self.lin(x).chunk(2, dim=-1)
        return self.norm(x + a * torch.sigmoid(b))


class FraudNet(nn.Module):
    def __init__(self, features=32, d=64, blocks=3):
        super().__init__()
        self.stem = nn.Linear(features, d)
        self.blocks = nn.Sequential(*[GatedBlock(d) for _ in range(blocks)])
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x))).squeeze(-1)


def batches(reader, size):
    for name in reader.names:
        rows = reader.load(name)
        for i in range(0, len(rows), size):
            part = torch.from_numpy(rows[i:i + size])
            yield part[:, :-1], part[:, -1]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5000)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--shards", type=int, default=14)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=20))
    rank = dist.get_rank()
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory(dir=here, prefix=f"rank{rank}_") as root:
        write_shards(root, args.shards, rows=640, features=32, seed=rank, rank=rank)
        net = DDP(FraudNet())
        opt = torch.optim.AdamW(net.parameters(), 1e-3)
        for epoch in range(args.epochs):
            reader = ShardReader(root)
            for step, (x, y) in enumerate(batches(reader, args.batch_size)):
                loss = F.binary_cross_entropy_with_logits(net(x), y)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
                if rank == 0 and step % 20 == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
