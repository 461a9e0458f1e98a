"""House prices, epoch loop with one validation pass per epoch."""
import argparse

import torch
from torch import nn


def epoch(model, x, y, bs, opt=None, budget=None):
    total, n = 0.0, 0
    order = torch.randperm(len(x)) if opt else torch.arange(len(x))
    for idx in order.split(bs):
        if opt and len(idx) < bs:
            break
        pred = model(x[idx]).squeeze(1)
        loss = nn.functional.huber_loss(pred, y[idx])
        if opt:
            opt.zero_grad()
            loss.backward()
            opt.step()
        total += loss.detach()
        n += 1
        if budget is not None and n >= budget:
            break
    return float(total) / n, n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=240)
    args = ap.parse_args()
    torch.manual_seed(44)
    x = torch.randn(330_000, 28)
    y = x[:, :5].sum(1).tanh() + 0.1 * torch.randn(len(x))
    cut = 300_000
    model = nn.Sequential(nn.Linear(28, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(),
                          nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    done, e = 0, 0
    while done < args.steps:
        tr, n = epoch(model, x[:cut], y[:cut], 5000, opt, args.steps - done)
        done += n
        e += 1
        with torch.no_grad():
            va, _ = epoch(model, x[cut:], y[cut:], 10_000)
        print(f"epoch {e} train {tr:.4f} val {va:.4f}")


if __name__ == "__main__":
    main()
