"""Residual network for tabular credit data, one embedding per column."""
import argparse

import torch
import torch.nn as nn


class Step(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.lin = nn.Linear(d, d)

    def forward(self, x):
        return x + torch.relu(self.lin(self.norm(x)))


class ColumnEmbedding(nn.Module):
    """Every column owns a direction and an offset, so columns can be added or frozen one by one."""

    def __init__(self, n_cols, d):
        super().__init__()
        self.direction = nn.ParameterList(nn.Parameter(torch.randn(d) / n_cols ** 0.5) for _ in range(n_cols))
        self.offset = nn.ParameterList(nn.Parameter(torch.zeros(d)) for _ in range(n_cols))

    def forward(self, x):
        return x @ torch.stack(list(self.direction)) + torch.stack(list(self.offset)).mean(0)


class DeepTab(nn.Module):
    def __init__(self, n_in, d, depth):
        super().__init__()
        self.first = ColumnEmbedding(n_in, d)
        self.steps = nn.Sequential(*[Step(d) for _ in range(depth)])
        self.last = nn.Linear(d, 1)

    def forward(self, x):
        return self.last(self.steps(self.first(x))).squeeze(-1)


def get_optimizer(model, fixed):
    if fixed:
        return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2, fused=True)
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2, foreach=False)


def train(level, fixed, n_steps):
    torch.manual_seed(77)
    cols, depth, batch = {1: (50, 16, 2048), 2: (150, 12, 1024), 3: (320, 6, 512)}[level]
    d = 64
    x = torch.randn(20000, cols)
    y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).float()
    model = DeepTab(cols, d, depth)
    optimizer = get_optimizer(model, fixed)
    perm = torch.randperm(len(x))
    for k in range(n_steps):
        lo = (k * batch) % (len(x) - batch)
        idx = perm[lo:lo + batch]
        loss = nn.functional.binary_cross_entropy_with_logits(model(x[idx]), y[idx])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if k % 40 == 0:
            print(f"{k:4d} {loss.item():.4f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=130)
    ns = ap.parse_args()
    train(ns.level, ns.fixed, ns.steps)
