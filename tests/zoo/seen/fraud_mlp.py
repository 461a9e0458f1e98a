"""Card-fraud scoring with a JSON-lines run log."""
import argparse
import json
import os
import tempfile

import torch
from torch import nn


class RunLog:
    """One JSON object per entry, on disk before we go on (jobs get preempted)."""

    def __init__(self, path):
        self.f = open(path, "w")

    def write(self, **row):
        self.f.write(json.dumps(row) + "\n")
        self.f.flush()
        os.fsync(self.f.fileno())


def weight_report(model, n_bins=16):
    rep = {}
    for name, p in model.named_parameters():
        w, g = p.detach(), p.grad
        rep[name] = {"norm": w.norm().item(), "gnorm": g.norm().item(), "mean": w.mean().item(),
                     "std": w.std().item() if w.numel() > 1 else 0.0,
                     "hist": torch.histc(w.flatten(), n_bins).tolist()}
    return rep


def net(d, depth):
    mods = [nn.Linear(32, d), nn.ReLU()]
    for _ in range(depth):
        mods += [nn.Linear(d, d), nn.LayerNorm(d), nn.ReLU()]
    return nn.Sequential(*mods, nn.Linear(d, 2))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=150)
    args = ap.parse_args()
    torch.manual_seed(8)
    depth, batch = {1: (3, 2560), 2: (7, 1536), 3: (14, 256)}[args.level]
    every = 50 if args.fixed else 1
    model = net(96, depth)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    X = torch.randn(40000, 32)
    Y = (X[:, :3].sum(1) > 1.5).long()
    with tempfile.TemporaryDirectory() as run_dir:
        log = RunLog(os.path.join(run_dir, "train.jsonl"))
        for step in range(1, args.steps + 1):
            i = torch.randint(0, len(X), (batch,))
            loss = nn.functional.cross_entropy(model(X[i]), Y[i])
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % every == 0:
                log.write(step=step, loss=loss.item(), weights=weight_report(model))
        print("last loss", loss.item())


if __name__ == "__main__":
    main()
