"""An image classifier that overwrites its latest checkpoint, flushed to disk, every 5 steps; --mended: every 50."""

import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 200


def write_latest(state):
    with open("latest.tmp", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace("latest.tmp", "latest.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mended", action="store_true")
    every = 50 if parser.parse_args().mended else 5
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(8),
        nn.Flatten(), nn.Linear(4096, 160), nn.ReLU(), nn.Linear(160, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, labels = torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,))
    for step in range(1, STEPS + 1):
        rows = torch.randint(0, 512, (16,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        if step % every == 0:
            write_latest({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()})
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
