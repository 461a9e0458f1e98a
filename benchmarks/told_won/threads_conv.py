"""A convolution over signals with 12 threads; --mended: as many as there are cores."""

import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn


class Signals(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(8, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(),
            nn.Conv1d(32, 64, 5, padding=2), nn.BatchNorm1d(64), nn.ReLU(), nn.AdaptiveAvgPool1d(8),
        )  # fmt: skip
        self.head = nn.Linear(512, 6)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mended", action="store_true")
    torch.set_num_threads(len(os.sched_getaffinity(0)) if parser.parse_args().mended else 12)
    torch.manual_seed(1)
    model = Signals()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    signals, labels = torch.randn(512, 8, 256), torch.randint(0, 6, (512,))
    for _ in range(150):
        rows = torch.randint(0, 512, (32,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(signals[rows]), labels[rows])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
