"""Regression that writes weight statistics and scores its held-out set as it goes."""

import argparse
import json
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def score(model, loader):
    model.eval()
    total = sum(F.mse_loss(model(x), y, reduction="sum").item() for x, y in loader)
    model.train()
    return total / len(loader.dataset)


def statistics(model):
    out = {}
    for name, p in model.named_parameters():
        out[name] = [p.mean().item(), p.abs().max().item(), p.grad.norm().item(), torch.histc(p.detach(), 32).tolist()]
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=160)
    args = parser.parse_args()
    torch.manual_seed(0)

    score_every = {1: 16, 2: 8, 3: 4}[args.level] * (10 if args.fixed else 1)
    log_every = 50 if args.fixed else 1
    x = torch.randn(8192, 256)
    y = x[:, :10].square().sum(1, keepdim=True)
    train = DataLoader(TensorDataset(x[:7000], y[:7000]), batch_size=96, shuffle=True, drop_last=True)
    held = DataLoader(TensorDataset(x[7000:], y[7000:]), batch_size=128)
    layers = [nn.Linear(256, 512), nn.GELU()]
    for _ in range(5):
        layers += [nn.Linear(512, 512), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    with tempfile.TemporaryDirectory() as folder, Path(folder, "curve.jsonl").open("w") as curve:
        step = 0
        while step < args.steps:
            for a, b in train:
                optimizer.zero_grad()
                loss = F.mse_loss(model(a), b)
                loss.backward()
                optimizer.step()
                step += 1
                if step % log_every == 0:
                    curve.write(json.dumps({"step": step, "loss": loss.item(), "weights": statistics(model)}) + "\n")
                if step % score_every == 0:
                    curve.write(json.dumps({"step": step, "held": score(model, held)}) + "\n")
                if step >= args.steps:
                    break
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
