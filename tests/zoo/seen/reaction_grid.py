"""Fit the coefficients of a reaction-diffusion system to observed snapshots.

A learned closure term is added to the classical right-hand side and the whole
integrator is differentiated through.
"""
import argparse

import torch
from torch import nn


class Closure(nn.Module):
    """Pointwise correction for the source term: a sum of smooth bumps."""

    def __init__(self, bumps):
        super().__init__()
        self.amp = nn.Parameter(torch.randn(bumps) * 0.01)
        self.mid = nn.Parameter(torch.linspace(-1, 1, bumps))
        self.width = nn.Parameter(torch.ones(bumps))

    def forward(self, u, v):
        out = torch.zeros_like(u)
        for a, m, w in zip(self.amp, self.mid, self.width):
            z = (u - m) * w
            out = out + a * torch.exp(-z * z) * torch.sigmoid(v)
        return out


class Reactor(nn.Module):
    def __init__(self, n_steps, bumps, cells, readout):
        super().__init__()
        self.n_steps = n_steps
        self.feed = nn.Parameter(torch.tensor(0.04))
        self.kill = nn.Parameter(torch.tensor(0.06))
        self.du = nn.Parameter(torch.tensor(0.16))
        self.dv = nn.Parameter(torch.tensor(0.08))
        self.closure = Closure(bumps)
        self.decode = nn.Sequential(*[nn.Linear(cells, cells) for _ in range(readout)], nn.Tanh())

    @staticmethod
    def lap(u):
        return u.roll(1, -1) + u.roll(-1, -1) - 2.0 * u

    def forward(self, u, v):
        for _ in range(self.n_steps):
            r = u * v * v
            du = self.du * self.lap(u) - r + self.feed * (1.0 - u) + self.closure(u, v)
            dv = self.dv * self.lap(v) + r - (self.feed + self.kill) * v
            u = torch.clamp(u + du, -2.0, 2.0)
            v = torch.clamp(v + dv, -2.0, 2.0)
        return u + self.decode(v), v


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=140)
    args = ap.parse_args()
    torch.manual_seed(3)
    cells = 96
    n_steps, bumps, batch, readout = {1: (1, 1, 1536, 8), 2: (2, 2, 1024, 4), 3: (3, 4, 768, 1)}[args.level]

    model = Reactor(n_steps, bumps, cells, readout)
    solve = torch.compile(model) if args.fixed else model
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    u_all, v_all = torch.rand(4096, cells), torch.rand(4096, cells) * 0.3
    target = (u_all * 0.9 + 0.1 * v_all).roll(1, -1)
    for step in range(args.steps):
        i = torch.randint(0, 4096, (batch,))
        u, _ = solve(u_all[i], v_all[i])
        loss = (u - target[i]).square().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
