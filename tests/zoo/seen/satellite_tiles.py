"""Land-cover classification on satellite tiles that live in shard files.

The archive is mounted over the network in production; here a temp file plus the
round trip of one request plays that part.
"""
import argparse
import os
import tempfile
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

BANDS, PX = 4, 40
RECORD = BANDS * PX * PX


@dataclass
class Config:
    level: int = 2
    fixed: bool = False
    steps: int = 150
    batch: int = 24
    classes: int = 10
    lr: float = 1e-3

    @property
    def round_trip(self):  # seconds for one remote read
        return {1: 0.00006, 2: 0.00028, 3: 0.0011}[self.level]


class TileArchive(Dataset):
    def __init__(self, path, count, round_trip):
        self.path, self.count, self.round_trip = path, count, round_trip
        self.fd = None

    def __len__(self):
        return self.count

    def _read(self, idx):
        if self.fd is None:
            self.fd = os.open(self.path, os.O_RDONLY)
        raw = os.pread(self.fd, RECORD, idx * RECORD)
        os.posix_fadvise(self.fd, idx * RECORD, RECORD, os.POSIX_FADV_DONTNEED)
        time.sleep(self.round_trip)
        return raw

    def __getitem__(self, idx):
        tile = np.frombuffer(self._read(idx), dtype=np.uint8).reshape(BANDS, PX, PX)
        return torch.from_numpy(tile.copy()), idx % 10


def build_net(classes):
    return nn.Sequential(
        nn.Conv2d(BANDS, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def batches(loader):
    while True:
        yield from loader


def train(cfg: Config):
    torch.manual_seed(1)
    count = 2400
    with tempfile.NamedTemporaryFile(suffix=".tiles") as f:
        rng = np.random.default_rng(1)
        f.write(rng.integers(0, 256, count * RECORD, dtype=np.uint8).tobytes())
        f.flush()
        os.fsync(f.fileno())
        data = TileArchive(f.name, count, cfg.round_trip)
        extra = dict(num_workers=4, prefetch_factor=4, persistent_workers=True) if cfg.fixed else {}
        loader = DataLoader(data, batch_size=cfg.batch, shuffle=True, drop_last=True, **extra)
        net = build_net(cfg.classes)
        opt = torch.optim.AdamW(net.parameters(), lr=cfg.lr, fused=True)
        lossf = nn.CrossEntropyLoss()
        for step, (tiles, label) in enumerate(batches(loader), 1):
            x = tiles.float().div_(255.0).sub_(0.5)
            with torch.autocast("cpu", torch.bfloat16):
                loss = lossf(net(x), label)
            loss.backward()
            opt.step()
            opt.zero_grad(set_to_none=True)
            if step % 50 == 0:
                print(f"[{step}/{cfg.steps}] loss={loss.item():.3f}")
            if step == cfg.steps:
                break


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=150)
    ns = ap.parse_args()
    train(Config(level=ns.level, fixed=ns.fixed, steps=ns.steps))
