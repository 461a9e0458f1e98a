"""Tiny WaveNet (8-bit mu-law) on an endless stream of synthetic tones."""
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

QUANT = 128
CLIP = 768
BATCH = 8
STEPS = 170


class ToneStream(IterableDataset):
    """Random chords with vibrato; synthesised on the fly, vectorised per clip."""

    def __init__(self, seed):
        self.seed = seed

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        t = np.arange(CLIP + 1, dtype=np.float32) / 8000.0
        while True:
            f = rng.uniform(110, 880, (3, 1)).astype(np.float32)
            phase = rng.uniform(0, 6.28, (3, 1)).astype(np.float32)
            wave = np.sin(6.2832 * f * t + phase).sum(0) / 3
            mu = np.sign(wave) * np.log1p((QUANT - 1) * np.abs(wave)) / math.log(QUANT)
            codes = ((mu + 1) / 2 * (QUANT - 1)).astype(np.int64)
            yield torch.from_numpy(codes[:-1]), torch.from_numpy(codes[1:])


class GatedLayer(nn.Module):
    def __init__(self, c, skip, dilation):
        super().__init__()
        self.dilation = dilation
        self.conv = nn.Conv1d(c, 2 * c, 2, dilation=dilation)
        self.res = nn.Conv1d(c, c, 1)
        self.skip = nn.Conv1d(c, skip, 1)

    def forward(self, x):
        a, b = self.conv(F.pad(x, (self.dilation, 0))).chunk(2, dim=1)
        h = torch.tanh(a) * torch.sigmoid(b)
        return x + self.res(h), self.skip(h)


class WaveNet(nn.Module):
    def __init__(self, c=40, skip=64, layers=8):
        super().__init__()
        self.embed = nn.Embedding(QUANT, c)
        self.layers = nn.ModuleList(GatedLayer(c, skip, 2 ** i) for i in range(layers))
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(),
                                 nn.Conv1d(skip, QUANT, 1))

    def forward(self, codes):
        x = self.embed(codes).transpose(1, 2)
        total = 0
        for layer in self.layers:
            x, s = layer(x)
            total = total + s
        return self.out(total)


def main():
    torch.manual_seed(71)
    loader = DataLoader(ToneStream(71), batch_size=BATCH)
    net = WaveNet()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)
    print(f"{sum(p.numel() for p in net.parameters())} parameters")
    start, smooth = time.time(), None
    for step, (x, y) in enumerate(loader):
        if step == STEPS:
            break
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        value = loss.item()
        smooth = value if smooth is None else 0.9 * smooth + 0.1 * value
        if step % 20 == 0:
            print(f"step {step} nll {smooth / math.log(2):.3f} bits {time.time() - start:.1f}s",
                  flush=True)


if __name__ == "__main__":
    main()
