"""Small U-shaped convolutional denoiser."""

import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 24, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(24, 1, 4, stride=2, padding=1)

    def forward(self, x):
        return x + self.up(self.middle(self.down(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    threads = len(os.sched_getaffinity(0)) if args.fixed else {1: 3, 2: 4, 3: 16}[args.level]
    torch.set_num_threads(threads)
    torch.manual_seed(0)

    clean = torch.rand(1024, 1, 32, 32)
    loader = DataLoader(TensorDataset(clean), batch_size=32, shuffle=True)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    while step < args.steps:
        for (x,) in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x + 0.1 * torch.randn_like(x)), x)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
