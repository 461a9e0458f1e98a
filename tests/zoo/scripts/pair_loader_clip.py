"""Spectrogram classifier: features are computed per sample, gradients are clipped in the loop."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, count, frames):
        self.raw = torch.randn(count, 4096)
        self.window = torch.hann_window(256)
        self.frames = frames

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, i):
        rows = []
        for k in range(self.frames):
            start = k * (4096 - 256) // self.frames
            piece = torch.fft.rfft(self.raw[i, start : start + 256] * self.window).abs()
            rows.append(torch.log1p(piece[:128]))
        return torch.stack(rows).mean(0), i % 4


class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.cand = nn.Linear(width, width)

    def forward(self, x):
        z = torch.sigmoid(self.gate(x))
        return z * x + (1 - z) * torch.tanh(self.cand(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    frames = {1: 8, 2: 20, 3: 40}[args.level]
    workers = 2 if args.fixed else 0
    loader = DataLoader(
        Clips(1024, frames), batch_size=32, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    model = nn.Sequential(*[Cell(128) for _ in range(40)], nn.Linear(128, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step = 0
    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if args.fixed:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            else:
                total = 0.0
                for p in model.parameters():
                    total += p.grad.norm().item() ** 2
                scale = min(1.0, 1.0 / (total**0.5 + 1e-6))
                for p in model.parameters():
                    p.grad.mul_(scale)
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
