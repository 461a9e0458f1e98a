"""A training that describes its weights in every step and appends the description to a file as JSON."""

import json
import os
import tempfile

import torch
from torch import nn


def histogram(values, bins=20):
    low, high = min(values), max(values)
    width = (high - low) / bins or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / width))] += 1
    return {"low": low, "high": high, "counts": counts}


def describe(model):
    return {name: histogram(p.detach().flatten()[:3000].tolist()) for name, p in model.named_parameters()}


def write(file, record):
    file.write(json.dumps(record) + "\n")
    file.flush()
    os.fsync(file.fileno())


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.randn(512, 64), torch.randn(512, 1)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for step in range(800):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            write(file, {"step": step, "loss": loss.item(), "weights": describe(model)})


main()
