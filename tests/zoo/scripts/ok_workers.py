"""Two loader processes keep ahead of the model."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __init__(self, count):
        self.raw = torch.randn(count, 512)
        self.window = torch.hann_window(512)

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, i):
        spectrum = torch.fft.rfft(self.raw[i] * self.window).abs()
        return torch.log1p(spectrum), i % 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    loader = DataLoader(
        Signals(4096), batch_size=64, shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=4
    )
    model = nn.Sequential(nn.Linear(257, 1280), nn.ReLU(), nn.Linear(1280, 1280), nn.ReLU(), nn.Linear(1280, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step = 0
    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
