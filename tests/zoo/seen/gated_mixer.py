"""Gated mixer regression on sensor windows (compiled)."""
import argparse

import torch
import torch.nn as nn


def soft_limit(x, cap):
    """Bring activations back when they run away."""
    if x.abs().max().item() > cap:
        x = x.clamp(-cap, cap)
    return x


def hard_limit(x, cap):
    return x.clamp(-cap, cap)


class GatedUnit(nn.Module):
    def __init__(self, d, limit):
        super().__init__()
        self.mix = nn.Linear(d, d)
        self.limit = limit

    def forward(self, x):
        y = self.mix(x)
        y = y * torch.sigmoid(1.7 * y) + torch.tanh(y) * 0.1
        y = y / torch.sqrt(1.0 + y * y)
        x = x + y
        if self.limit is not None:
            x = self.limit(x, 30.0)
        return x


class Mixer(nn.Module):
    def __init__(self, d_in, d, depth, guarded, limit):
        super().__init__()
        self.inp = nn.Linear(d_in, d)
        self.units = nn.ModuleList(
            GatedUnit(d, limit if i >= depth - guarded else None) for i in range(depth))
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        h = self.inp(x)
        for u in self.units:
            h = u(h)
        return self.out(h).squeeze(-1)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=200)
    cfg = ap.parse_args()
    torch.manual_seed(31)
    guarded, rows = {1: (4, 2048), 2: (8, 1024), 3: (16, 256)}[cfg.level]
    net = Mixer(48, 64, 16, guarded, hard_limit if cfg.fixed else soft_limit)
    step_fn = torch.compile(net)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9, fused=True)
    X = torch.randn(40000, 48)
    Y = X[:, :4].sum(1).sin()
    for it in range(cfg.steps):
        s = (it * rows) % (len(X) - rows)
        pred = step_fn(X[s:s + rows])
        loss = torch.nn.functional.mse_loss(pred, Y[s:s + rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("loss", loss.item())
