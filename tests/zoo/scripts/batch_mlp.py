"""Tabular regression with a wide network."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--factor", type=int)
    args = parser.parse_args()
    torch.manual_seed(0)

    batch_size = {1: 96, 2: 24, 3: 4}[args.level] * (args.factor or (2 if args.fixed else 1))
    x = torch.randn(8192, 512)
    y = x[:, :1].sin() + 0.1 * torch.randn(8192, 1)
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(512, 1536), nn.SiLU(), nn.Linear(1536, 1536), nn.SiLU(), nn.Linear(1536, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    step = 0
    while step < args.steps:
        for features, target in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(features), target)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
