"""Contrastive learning: the same samples pass the encoder twice, each time with other noise."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    torch.manual_seed(0)

    table = torch.randn(16384, 128)
    encoder = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 64))
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3, fused=True)
    for _ in range(args.steps):
        rows = table[torch.randint(0, len(table), (192,))]
        first = F.normalize(encoder(rows * (torch.rand_like(rows) > 0.2)), dim=1)
        second = F.normalize(encoder(rows + 0.3 * torch.randn_like(rows)), dim=1)
        logits = first @ second.T / 0.1
        labels = torch.arange(len(rows))
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
