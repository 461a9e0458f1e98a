"""Classifier that reads one file per sample from a mounted share."""

import argparse
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SharedFolder(Dataset):
    """One raw float32 file per sample; ``latency_s`` is what the share takes to answer."""

    def __init__(self, folder, latency_s):
        self.paths = sorted(Path(folder).glob("*.bin"))
        self.latency_s = latency_s

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        time.sleep(self.latency_s)
        raw = bytearray(self.paths[i].read_bytes())
        return torch.frombuffer(raw, dtype=torch.float32), i % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--workers", type=int)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    latency_s = {1: 0.0001, 2: 0.0003, 3: 0.0018}[args.level]
    workers = args.workers if args.workers is not None else (4 if args.fixed else 0)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(512):
            Path(folder, f"{i:05}.bin").write_bytes(torch.randn(1024).numpy().tobytes())
        loader = DataLoader(
            SharedFolder(folder, latency_s),
            batch_size=16,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        model = nn.Sequential(nn.Linear(1024, 1600), nn.ReLU(), nn.Linear(1600, 1200), nn.ReLU(), nn.Linear(1200, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
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
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
