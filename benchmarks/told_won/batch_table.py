"""A small network with 4 rows a step; --mended: 256, the 64 times that the probe tries at most."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 4


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(20, 64)
        self.body = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(5)])
        self.last = nn.Linear(64, 2)

    def forward(self, x):
        return self.last(self.body(self.first(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mended", action="store_true")
    rows = ROWS * (64 if parser.parse_args().mended else 1)
    torch.manual_seed(0)
    model = Table()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    table, labels = torch.randn(9000, 20), torch.randint(0, 2, (9000,))
    for _ in range(1500):
        chosen = torch.randint(0, 9000, (rows,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(table[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
