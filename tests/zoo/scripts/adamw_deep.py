"""Very deep narrow residual network trained with AdamW."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Deep(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh()) for _ in range(depth)
        )
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = x + 0.1 * layer(x)
        return self.out(x)


def yes(text):
    return {"true": True, "false": False, "none": None}[text.lower()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--foreach", type=yes)
    parser.add_argument("--fused", type=yes)
    args = parser.parse_args()
    torch.manual_seed(0)

    width, depth, batch = {1: (64, 40, 1024), 2: (64, 60, 256), 3: (160, 60, 24)}[args.level]
    if args.foreach is None and args.fused is None:
        choice = {"fused": True} if args.fixed else {"foreach": False}
    else:
        choice = {"fused": True} if args.fused else {"foreach": bool(args.foreach)}
    x = torch.randn(8192, width)
    y = x.square().mean(1, keepdim=True)
    loader = DataLoader(TensorDataset(x, y), batch_size=None, sampler=batches(len(x), batch))
    model = Deep(width, depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, **choice)
    step = 0
    while step < args.steps:
        for a, b in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}")


def batches(count, size):
    return torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(range(count)), size, drop_last=True)


if __name__ == "__main__":
    main()
