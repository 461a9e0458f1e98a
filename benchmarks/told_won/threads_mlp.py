"""A regression network with 6 threads; --mended: as many as there are cores."""

import argparse
import os

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mended", action="store_true")
    torch.set_num_threads(len(os.sched_getaffinity(0)) if parser.parse_args().mended else 6)
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(400, 900), nn.SiLU(), nn.Linear(900, 900), nn.SiLU(), nn.Linear(900, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(200):
        x = torch.randn(96, 400)
        loss = (model(x) - 2 * x[:, :3]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
