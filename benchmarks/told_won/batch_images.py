"""Small images, 2 a step through a DataLoader; --mended: 128, the 64 times that the probe tries at most."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROWS = 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mended", action="store_true")
    rows = ROWS * (64 if parser.parse_args().mended else 1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(128, 3),
    )  # fmt: skip
    images = TensorDataset(torch.randn(4096, 1, 10, 10), torch.randint(0, 3, (4096,)))
    loader = DataLoader(images, batch_size=rows, shuffle=True)
    optimizer, judge = torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss()
    # An epoch of small batches is long enough; of large ones it takes several.
    for _ in range(1 if rows == ROWS else 6):
        for x, y in loader:
            optimizer.zero_grad()
            judge(model(x), y).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
