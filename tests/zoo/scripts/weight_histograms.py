"""Autoencoder that writes its training curve and weight statistics to a JSON-lines file."""

import argparse
import json
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def describe(model, histograms):
    record = {}
    for name, p in list(model.named_parameters())[:histograms]:
        counts = torch.histc(p.detach(), bins=64)
        record[name] = {
            "mean": p.mean().item(),
            "std": p.std().item(),
            "min": p.min().item(),
            "max": p.max().item(),
            "bins": counts.tolist(),
            "grad": p.grad.norm().item(),
        }
    return record


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--log-every", type=int)
    args = parser.parse_args()
    torch.manual_seed(0)

    log_every = args.log_every or (10 if args.fixed else 1)
    histograms = {1: 3, 2: 9, 3: 20}[args.level]
    x = torch.randn(4096, 512)
    loader = DataLoader(TensorDataset(x), batch_size=64, shuffle=True, drop_last=True)
    widths = [512, 512, 384, 256, 128, 64, 128, 256, 384, 512, 512]
    layers = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), nn.ELU()]
    model = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log.jsonl").open("w") as log:
        step = 0
        while step < args.steps:
            for (a,) in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(a), a)
                loss.backward()
                optimizer.step()
                if step % log_every == 0:
                    row = {"step": step, "loss": loss.item(), "weights": describe(model, histograms)}
                    log.write(json.dumps(row) + "\n")
                    log.flush()
                step += 1
                if step >= args.steps:
                    break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
