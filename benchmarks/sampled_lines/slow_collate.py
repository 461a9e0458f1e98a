"""A regression on records whose collate function parses and joins text before it makes tensors."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader


def parse(record):
    values = {}
    for part in record.split(";"):
        key, _, value = part.partition("=")
        values[key.strip()] = float(value)
    return values


def scale(values, names):
    return [(values[name] - 0.5) * 2.0 for name in names]


class Collate:
    def __init__(self, names):
        self.names = names

    def __call__(self, records):
        rows = []
        for record in records:
            rows.append(scale(parse(record), self.names))
        x = torch.tensor(rows)
        return x, x.sum(1, keepdim=True)


def main():
    torch.manual_seed(0)
    random.seed(0)
    names = [f"sensor{k}" for k in range(40)]
    records = [" ; ".join(f"{name}={random.random():.6f}" for name in names) for _ in range(4000)] * 20
    model = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in DataLoader(records, batch_size=64, shuffle=True, collate_fn=Collate(names)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


main()
