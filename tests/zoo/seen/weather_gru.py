"""Next-day temperature from two days of hourly station readings."""
import argparse

import torch
from torch import nn

HOURS, SENSORS = 48, 12


def stations(n=6000, seed=13):
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(n, 1, SENSORS, generator=g)
    drift = torch.randn(n, HOURS, SENSORS, generator=g).cumsum(1) * 0.05
    x = base + drift
    y = x[:, -24:, 0].mean(1) + 0.1 * torch.randn(n, generator=g)
    return x, y


class Forecaster(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.gru = nn.GRU(SENSORS, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        out, _ = self.gru(x)
        return self.head(out[:, -1]).squeeze(-1)


def main(level, fixed, steps):
    torch.manual_seed(13)
    x, y = stations()
    batch = 384 if fixed else {1: 190, 2: 125, 3: 52}[level]
    lr = 1e-3 * (batch / 52) ** 0.5
    model = Forecaster()
    opt = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
    for it in range(1, steps + 1):
        pick = torch.randint(0, len(x), (batch,))
        pred = model(x[pick])
        loss = nn.functional.smooth_l1_loss(pred, y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 100 == 0:
            print(f"{it:5d} {loss.item():.4f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=220)
    a = ap.parse_args()
    main(a.level, a.fixed, a.steps)
