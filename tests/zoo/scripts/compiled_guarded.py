"""Residual blocks with an activation guard, under torch.compile."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Block(nn.Module):
    def __init__(self, width, guarded):
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))
        self.guarded = guarded

    def forward(self, x):
        h = torch.tanh(self.mix(x)) * self.scale + x
        peak = h.detach().abs().max()
        if self.guarded:
            if peak > 8.0:
                h = h * (8.0 / peak)
        else:
            h = h * torch.where(peak > 8.0, 8.0 / peak, torch.ones_like(peak))
        return h * torch.sigmoid(h) + 0.1 * h.abs() - 0.01 * h.square()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=250)
    args = parser.parse_args()
    torch.manual_seed(0)

    guards, batch = {1: (5, 512), 2: (10, 448), 3: (10, 192)}[args.level]
    guarded = 0 if args.fixed else guards
    width, blocks = 96, 10
    x = torch.randn(8192, width)
    y = x.tanh().sum(1, keepdim=True)
    loader = DataLoader(
        TensorDataset(x, y),
        sampler=BatchSampler(RandomSampler(x), batch, drop_last=True),
        batch_size=None,
    )
    model = nn.Sequential(*[Block(width, i < guarded) for i in range(blocks)], nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    net = torch.compile(model)
    step = 0
    while step < args.steps:
        for a, b in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(net(a), b)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
