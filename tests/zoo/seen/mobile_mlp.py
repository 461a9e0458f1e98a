"""Gesture recogniser for a phone: activations are kept on the half-precision grid of
the exported model, master weights stay in fp32, gradients use dynamic loss scaling."""
import argparse

import torch
from torch import nn


class HalfGrid(nn.Module):
    """Round to half and back, so training sees what the device sees."""

    def forward(self, x):
        return x.to(torch.float16).to(torch.float32)


class GestureNet(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.rnn = nn.GRU(6, hidden, batch_first=True)
        self.grid = HalfGrid()
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), HalfGrid(), nn.Linear(hidden, 9))

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.head(self.grid(h).mean(1))


def make_scaler(level, fixed):
    if fixed:
        return torch.amp.GradScaler("cpu", init_scale=2.0 ** 14)
    growth, interval = {1: (2.0, 5), 2: (4.0, 4), 3: (16.0, 3)}[level]
    return torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_factor=growth,
                                backoff_factor=0.5, growth_interval=interval)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=140, help="weight updates to apply")
    args = ap.parse_args()
    torch.manual_seed(6)
    x_all = torch.randn(2000, 60, 6).cumsum(1) * 0.1
    y_all = torch.randint(0, 9, (2000,))
    net = GestureNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    scaler = make_scaler(args.level, args.fixed)
    updates, tries = 0, 0
    while updates < args.steps:
        tries += 1
        i = torch.randint(0, 2000, (48,))
        loss = nn.functional.cross_entropy(net(x_all[i]), y_all[i])
        opt.zero_grad()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        if scaler.get_scale() >= before:
            updates += 1
    print(f"{updates} updates in {tries} batches, scale {scaler.get_scale():.0f}, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
