"""Classifier validated once per epoch on a small held-out set."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def loader_of(x, y, batch):
    data = TensorDataset(x, y)
    return DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), batch, drop_last=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=210)
    args = parser.parse_args()
    torch.manual_seed(0)

    x = torch.randn(18000, 200)
    y = x[:, :7].argmax(1)
    train, held = loader_of(x[:17000], y[:17000], 240), loader_of(x[17000:], y[17000:], 250)
    model = nn.Sequential(nn.Linear(200, 800), nn.ReLU(), nn.Linear(800, 800), nn.ReLU(), nn.Linear(800, 7))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step = 0
    while step < args.steps:
        model.train()
        for a, b in train:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(a), b)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
        model.eval()
        with torch.no_grad():
            right = sum((model(a).argmax(1) == b).sum().item() for a, b in held)
        print(f"step {step} accuracy {right / 1000:.3f}")


if __name__ == "__main__":
    main()
