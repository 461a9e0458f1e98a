"""LSTM forecaster on windows of a long series, truncated in time."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    torch.manual_seed(0)

    series = torch.randn(32, 40_000).cumsum(1)
    series = (series - series.mean(1, keepdim=True)) / series.std(1, keepdim=True)
    cell, out = nn.LSTM(1, 96, batch_first=True), nn.Linear(96, 1)
    optimizer = torch.optim.AdamW([*cell.parameters(), *out.parameters()], lr=1e-3, fused=True)
    state = None
    losses = []
    for step in range(args.steps):
        start = step * 48 % 39_000
        window = series[:, start : start + 49, None]
        h, state = cell(window[:, :-1], state)
        state = tuple(s.detach() for s in state)
        loss = F.mse_loss(out(h), window[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {sum(losses[-10:]) / 10:.5f}")


if __name__ == "__main__":
    main()
