"""Sequence regressor that keeps what it predicted for a look afterwards."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=160)
    args = parser.parse_args()
    torch.manual_seed(0)

    out_width = {1: 512, 2: 2048, 3: 8192}[args.level]
    x = torch.randn(4096, 256)
    loader = DataLoader(TensorDataset(x), batch_size=128, shuffle=True, drop_last=True)
    body = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU())
    head = nn.Linear(512, out_width)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
    target = torch.randn(out_width)
    history = []
    step = 0
    while step < args.steps:
        for (a,) in loader:
            optimizer.zero_grad()
            predicted = head(body(a))
            loss = F.mse_loss(predicted, target.expand_as(predicted))
            loss.backward()
            optimizer.step()
            history.append((loss.item(), predicted.detach().mean().item()) if args.fixed else (loss, predicted))
            step += 1
            if step >= args.steps:
                break
    print(f"loss {float(history[-1][0]):.4f} over {len(history)} steps")


if __name__ == "__main__":
    main()
