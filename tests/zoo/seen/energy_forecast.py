"""Household load forecasting with a causal temporal network."""
import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Setup:
    steps: int
    eval_interval: int
    eval_batches: int = 10
    window: int = 96
    batch: int = 64


class CausalNet(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.lift = nn.Linear(3, d)
        self.mix = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(4))
        self.read = nn.Linear(d, 1)

    def forward(self, x):
        h = torch.relu(self.lift(x))
        for i, m in enumerate(self.mix):
            past = torch.nn.functional.pad(h, (0, 0, 2 ** i, 0))[:, : h.shape[1]]
            h = h + torch.relu(m(torch.cat([h, past], -1)))
        return self.read(h[:, -1]).squeeze(-1)


class Forecast:
    def __init__(self, s: Setup):
        torch.manual_seed(66)
        self.s = s
        t = torch.arange(30_000).float()
        load = torch.sin(t / 24 * 6.283) + 0.3 * torch.sin(t / 168 * 6.283) + 0.1 * torch.randn(30_000)
        self.series = torch.stack([load, torch.sin(t / 24 * 6.283), torch.cos(t / 24 * 6.283)], 1)
        self.model = CausalNet()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)

    def sample(self, lo, hi):
        at = torch.randint(lo, hi - self.s.window - 1, (self.s.batch, 1)) + torch.arange(self.s.window + 1)
        w = self.series[at]
        return w[:, :-1], w[:, -1, 0]

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        err = 0.0
        for _ in range(self.s.eval_batches):
            x, y = self.sample(25_000, 30_000)
            err += (self.model(x) - y).abs().mean().item()
        self.model.train()
        return err / self.s.eval_batches

    def run(self):
        for step in range(1, self.s.steps + 1):
            x, y = self.sample(0, 25_000)
            loss = (self.model(x) - y).square().mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if step % self.s.eval_interval == 0:
                print(f"{step}: train {loss.item():.4f} val {self.validate():.4f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=150)
    a = ap.parse_args()
    interval = {1: 16, 2: 7, 3: 2}[a.level]
    Forecast(Setup(steps=a.steps, eval_interval=250 if a.fixed else interval)).run()
