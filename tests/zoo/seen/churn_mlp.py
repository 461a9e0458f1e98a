"""Customer churn from a table of account features."""
import argparse

import torch
import torch.nn as nn


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=250)
    args = ap.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                          nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(100_000, 36)
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).float()
    bce = nn.BCEWithLogitsLoss()
    batch = 8192
    for step in range(args.steps):
        lo = (step * batch) % (len(x) - batch)
        loss = bce(model(x[lo:lo + batch]).squeeze(1), y[lo:lo + batch])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 100 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
