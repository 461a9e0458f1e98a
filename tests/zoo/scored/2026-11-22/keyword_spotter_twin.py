"""Small-footprint keyword spotting on synthetic one-second clips."""
import argparse
import math
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SAMPLE_RATE = 16000
N_FFT = 512
HOP = 160
N_MELS = 40


def hz_to_mel(f):
    return 2595.0 * math.log10(1.0 + f / 700.0)


def mel_to_hz(m):
    return 700.0 * (10.0 ** (m / 2595.0) - 1.0)


def mel_filterbank(n_mels=N_MELS, n_fft=N_FFT, sr=SAMPLE_RATE):
    points = [mel_to_hz(m) for m in np.linspace(hz_to_mel(20), hz_to_mel(sr / 2), n_mels + 2)]
    bins = np.floor((n_fft + 1) * np.array(points) / sr).astype(int)
    fb = np.zeros((n_mels, n_fft // 2 + 1), dtype=np.float32)
    for m in range(1, n_mels + 1):
        lo, mid, hi = bins[m - 1], bins[m], bins[m + 1]
        for k in range(lo, mid):
            fb[m - 1, k] = (k - lo) / max(1, mid - lo)
        for k in range(mid, hi):
            fb[m - 1, k] = (hi - k) / max(1, hi - mid)
    return fb


class LogMel:
    def __init__(self):
        self.fb = mel_filterbank()
        self.window = np.hanning(N_FFT).astype(np.float32)

    def __call__(self, wave):
        frames = np.lib.stride_tricks.sliding_window_view(wave, N_FFT)[::HOP] * self.window
        spec = torch.fft.rfft(torch.from_numpy(np.ascontiguousarray(frames, dtype=np.float32)))
        power = spec.real.square() + spec.imag.square()
        return torch.log(torch.from_numpy(self.fb) @ power.T + 1e-6).numpy()


class SpeechCommands(Dataset):
    """Each class is a pair of chirps with jittered onset and noise."""

    def __init__(self, n_clips, n_classes, seed=0):
        self.rng = np.random.default_rng(seed)
        self.labels = self.rng.integers(0, n_classes, n_clips)
        self.features = LogMel()
        t = np.arange(SAMPLE_RATE, dtype=np.float32) / SAMPLE_RATE
        base = 200.0 + 150.0 * np.arange(n_classes)
        self.templates = np.stack(
            [np.sin(2 * np.pi * (f * t + 0.5 * f * t ** 2)) for f in base]).astype(np.float32)
        self.noise = self.rng.standard_normal(SAMPLE_RATE * 4).astype(np.float32)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        label = int(self.labels[idx])
        wave = np.roll(self.templates[label], (idx * 37) % 3000)
        off = (idx * 7919) % (SAMPLE_RATE * 3)
        wave = wave + 0.8 * self.noise[off:off + SAMPLE_RATE]
        return torch.from_numpy(self.features(wave)), label


class DSBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(c)

    def forward(self, x):
        return F.relu(x + self.bn(self.conv(x)))


class SpotterNet(nn.Module):
    def __init__(self, n_classes, width=32, depth=3):
        super().__init__()
        self.stem = nn.Conv2d(1, width, (5, 5), stride=(2, 2), padding=2)
        self.blocks = nn.Sequential(*[DSBlock(width) for _ in range(depth)])
        self.head = nn.Linear(width, n_classes)

    def forward(self, x):
        x = F.relu(self.stem(x.unsqueeze(1)))
        x = self.blocks(x)
        return self.head(x.mean(dim=(2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clips", type=int, default=1280)
    parser.add_argument("--classes", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    train_set = SpeechCommands(args.clips, args.classes, seed=args.seed)
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = SpotterNet(args.classes)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader))

    for epoch in range(args.epochs):
        model.train()
        started, total, correct = time.time(), 0.0, 0
        for step, (mel, label) in enumerate(loader):
            logits = model(mel)
            loss = F.cross_entropy(logits, label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            total += loss.item()
            correct += (logits.argmax(1) == label).sum().item()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        n = len(loader) * args.batch_size
        print(f"epoch {epoch} loss {total / len(loader):.4f} acc {correct / n:.3f} "
              f"{time.time() - started:.1f}s")


if __name__ == "__main__":
    main()
