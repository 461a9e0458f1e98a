"""Tissue type classification on small fluorescence tiles.

    python tiles.py --epochs 6 --batch-size 48
"""
import argparse
import os
import random
import shutil
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

NUM_CLASSES = 6
RAW = 112
CROP = 80


def export_tiles(root, n, seed):
    """Writes one .npz per tile the way the scanner export tool does (uint16, 3 stains)."""
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:RAW, 0:RAW].astype(np.float32)
    index = []
    for i in range(n):
        label = int(rng.integers(NUM_CLASSES))
        img = rng.normal(900, 120, size=(3, RAW, RAW)).astype(np.float32)
        for _ in range(4 + 2 * label):
            cx, cy = rng.uniform(8, RAW - 8, 2)
            r = rng.uniform(3, 9)
            blob = np.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / (2 * r * r))
            img[int(rng.integers(3))] += 6000 * blob
        path = os.path.join(root, f"tile_{i:05d}.npz")
        np.savez_compressed(path, image=img.clip(0, 65535).astype(np.uint16), label=label)
        index.append(path)
    return index


class TileDataset(Dataset):
    def __init__(self, paths, train=True):
        self.train = train
        self.images = np.empty((len(paths), 3, RAW, RAW), dtype=np.uint16)
        self.labels = []
        for k, path in enumerate(paths):
            with np.load(path) as z:
                self.images[k] = z["image"]
                self.labels.append(int(z["label"]))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        raw, label = self.images[i], self.labels[i]
        if self.train:
            top = random.randint(0, RAW - CROP)
            left = random.randint(0, RAW - CROP)
        else:
            top = left = (RAW - CROP) // 2
        img = raw[:, top:top + CROP, left:left + CROP].astype(np.float32) / 8000.0
        if self.train and random.random() < 0.5:
            img = img[:, :, ::-1]
        return torch.from_numpy(np.ascontiguousarray(img)), label


def conv_bn(cin, cout, stride=1):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride, 1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class TileNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.stem = conv_bn(3, width, 2)
        self.stage1 = nn.Sequential(conv_bn(width, width * 2, 2), conv_bn(width * 2, width * 2))
        self.stage2 = nn.Sequential(conv_bn(width * 2, width * 4, 2), conv_bn(width * 4, width * 4))
        self.fc = nn.Linear(width * 4, NUM_CLASSES)

    def forward(self, x):
        x = self.stage2(self.stage1(self.stem(x)))
        return self.fc(x.mean((2, 3)))


def evaluate(model, loader):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum().item()
            total += y.numel()
    model.train()
    return correct / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--tiles", type=int, default=1152)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=7)
    args = ap.parse_args()

    random.seed(args.seed)
    torch.manual_seed(args.seed)
    root = tempfile.mkdtemp(prefix="tiles_")
    try:
        paths = export_tiles(root, args.tiles + 96, args.seed)
        train_set = TileDataset(paths[:args.tiles])
        test_set = TileDataset(paths[args.tiles:], train=False)
        train_loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True)
        test_loader = DataLoader(test_set, args.batch_size)

        model = TileNet()
        total_steps = args.epochs * len(train_loader)
        opt = torch.optim.SGD(model.parameters(), lr=args.lr * 10, momentum=0.9, weight_decay=1e-4, nesterov=True)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=args.lr * 20, total_steps=total_steps)
        for epoch in range(args.epochs):
            t0 = time.time()
            running = 0.0
            for x, y in train_loader:
                loss = F.cross_entropy(model(x), y, label_smoothing=0.05)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
                sched.step()
                running += loss.item()
            dt = time.time() - t0
            print(f"epoch {epoch}  loss {running / len(train_loader):.4f}  "
                  f"{len(train_loader) * args.batch_size / dt:.0f} img/s", flush=True)
        print(f"test acc {evaluate(model, test_loader):.3f}")
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
