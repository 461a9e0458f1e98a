"""Train a small CNN to tell leaf diseases apart on scanned leaf crops."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SIDE = 48
N_CLASSES = 8


def equalise_tiles(img, tile):
    """Local contrast: every tile gets zero mean and unit variance per channel."""
    out = np.empty_like(img)
    for top in range(0, SIDE, tile):
        for left in range(0, SIDE, tile):
            patch = img[top:top + tile, left:left + tile]
            mean = patch.mean(axis=(0, 1))
            std = patch.std(axis=(0, 1))
            out[top:top + tile, left:left + tile] = (patch - mean) / (std + 1e-3)
    return out


def equalise_grid(img, tile):
    n = SIDE // tile
    t = img.reshape(n, tile, n, tile, 3)
    mean = t.mean(axis=(1, 3), keepdims=True)
    d = t - mean
    std = np.sqrt(np.mean(d * d, axis=(1, 3), keepdims=True))
    return (d / (std + 1e-3)).reshape(SIDE, SIDE, 3)


class LeafScans(Dataset):
    def __init__(self, n, tile, share, contrast, seed=0):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, N_CLASSES, n)
        base = rng.integers(0, 255, (N_CLASSES, SIDE, SIDE, 3))
        noise = rng.integers(-60, 60, (n, SIDE, SIDE, 3))
        self.scans = np.clip(base[self.labels] + noise, 0, 255).astype(np.uint8)
        self.tile = tile
        self.share = share  # part of the crops that get the local contrast
        self.contrast = contrast
        self.rng = np.random.default_rng(seed + 1)

    def __len__(self):
        return len(self.scans)

    def __getitem__(self, i):
        img = self.scans[i].astype(np.float32) / 255.0
        gain = self.rng.uniform(0.8, 1.2)
        img *= gain
        if self.rng.random() < self.share:
            img = self.contrast(img, self.tile)
        if self.rng.random() < 0.5:
            img = img[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(img.transpose(2, 0, 1))), int(self.labels[i])


class LeafNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 16, 3, padding=1)
        self.c2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.c3 = nn.Conv2d(32, 48, 3, stride=2, padding=1)
        self.n1 = nn.BatchNorm2d(16)
        self.n2 = nn.BatchNorm2d(32)
        self.head = nn.Linear(48, N_CLASSES)

    def forward(self, x):
        x = F.relu(self.n1(self.c1(x)))
        x = F.relu(self.n2(self.c2(x)))
        x = F.relu(self.c3(x))
        return self.head(x.mean(dim=(2, 3)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2, choices=(1, 2, 3))
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=140)
    args = ap.parse_args()

    torch.manual_seed(0)
    tile, share = {1: (24, 0.25), 2: (24, 0.5), 3: (16, 1.0)}[args.level]
    data = LeafScans(1600, tile, share, equalise_grid if args.fixed else equalise_tiles)
    loader = DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
    net = LeafNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, fused=True)

    done = 0
    net.train()
    while done < args.steps:
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
            done += 1
            if done % 50 == 0:
                print(f"step {done} loss {loss.item():.4f}")
            if done >= args.steps:
                break


if __name__ == "__main__":
    main()
