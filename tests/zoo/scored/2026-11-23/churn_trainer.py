"""Tabular churn model with a small Trainer class."""
import json
import os
import tempfile
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TrainArgs:
    rows: int = 40000
    numeric: int = 48
    categories: int = 12
    cardinality: int = 50
    width: int = 384
    depth: int = 5
    batch_size: int = 1024
    steps: int = 130
    lr: float = 1e-3
    log_every: int = 1
    seed: int = 8


class ResidualMLP(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.emb = nn.Embedding(a.categories * a.cardinality, 8)
        self.register_buffer("offset", torch.arange(a.categories) * a.cardinality)
        self.inp = nn.Linear(a.numeric + 8 * a.categories, a.width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(a.width), nn.Linear(a.width, a.width), nn.GELU(), nn.Linear(a.width, a.width))
            for _ in range(a.depth))
        self.out = nn.Linear(a.width, 1)

    def forward(self, num, cat):
        x = self.inp(torch.cat([num, self.emb(cat + self.offset).flatten(1)], 1))
        for b in self.blocks:
            x = x + b(x)
        return self.out(x).squeeze(1)


class MetricWriter:
    def __init__(self, path, bins=40):
        self.file = open(path, "w")
        self.bins = bins

    def scalars(self, step, **values):
        self.write({"step": step, **values})

    def histogram(self, step, tag, tensor):
        lo, hi = tensor.min().item(), tensor.max().item()
        counts = torch.histc(tensor.float(), bins=self.bins, min=lo, max=hi).tolist()
        self.write({"step": step, "tag": tag, "min": lo, "max": hi, "mean": tensor.mean().item(),
                    "std": tensor.std(unbiased=False).item(), "counts": counts})

    def write(self, row):
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()

    def close(self):
        self.file.close()


class Trainer:
    def __init__(self, args, workdir):
        torch.manual_seed(args.seed)
        torch.set_num_threads(2)
        self.args = args
        self.model = ResidualMLP(args)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr, weight_decay=1e-4, fused=True)
        self.writer = MetricWriter(os.path.join(workdir, "metrics.jsonl"))
        self.num = torch.randn(args.rows, args.numeric)
        self.cat = torch.randint(0, args.cardinality, (args.rows, args.categories))
        signal = self.num[:, :4].sum(1) + (self.cat[:, 0] % 3 - 1)
        self.y = (signal + 0.5 * torch.randn(args.rows) > 0).float()

    def log(self, step, loss):
        self.writer.scalars(step, loss=loss.item(), lr=self.opt.param_groups[0]["lr"])
        for name, p in self.model.named_parameters():
            self.writer.histogram(step, "weights/" + name, p.detach())
            self.writer.histogram(step, "grads/" + name, p.grad)

    def train(self):
        a = self.args
        start = time.time()
        for step in range(1, a.steps + 1):
            idx = torch.randint(0, a.rows, (a.batch_size,))
            loss = F.binary_cross_entropy_with_logits(self.model(self.num[idx], self.cat[idx]), self.y[idx])
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            if step % a.log_every == 0:
                self.log(step, loss)
        self.writer.close()
        print(f"finished {a.steps} steps in {time.time() - start:.1f}s, last loss {loss.item():.4f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        Trainer(TrainArgs(), tmp).train()
