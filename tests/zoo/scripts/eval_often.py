"""Classifier that looks at its held-out set while it trains."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right, count = 0, 0
    for x, y in loader:
        right += (model(x).argmax(1) == y).sum().item()
        count += len(y)
    model.train()
    return right / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--times-rarer", type=int)
    args = parser.parse_args()
    torch.manual_seed(0)

    every = {1: 20, 2: 8, 3: 5}[args.level] * (args.times_rarer or (10 if args.fixed else 1))
    held_out = {1: 768, 2: 768, 3: 1600}[args.level]
    x = torch.randn(8192, 256)
    y = x[:, :6].argmax(1)
    train = DataLoader(TensorDataset(x[:6000], y[:6000]), batch_size=64, shuffle=True, drop_last=True)
    held = DataLoader(TensorDataset(x[6000 : 6000 + held_out], y[6000 : 6000 + held_out]), batch_size=128)
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 6)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step, best = 0, 0.0
    while step < args.steps:
        for a, b in train:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(a), b)
            loss.backward()
            optimizer.step()
            step += 1
            if step % every == 0:
                best = max(best, evaluate(model, held))
            if step >= args.steps:
                break
    print(f"loss {loss.item():.4f} best {best:.3f}")


if __name__ == "__main__":
    main()
