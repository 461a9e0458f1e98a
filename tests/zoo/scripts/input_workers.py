"""Sequence classifier over records that live on a file server; one loader process."""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __init__(self, folder, latency_s):
        self.paths = sorted(Path(folder).glob("*.json"))
        self.latency_s = latency_s

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        time.sleep(self.latency_s)
        record = json.loads(self.paths[i].read_text())
        return torch.tensor(record["signal"]), record["label"]


def write_records(folder, count):
    g = torch.Generator().manual_seed(1)
    for i in range(count):
        signal = torch.randn(256, generator=g).tolist()
        Path(folder, f"{i:05}.json").write_text(json.dumps({"signal": signal, "label": i % 5}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--prepared", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    latency_s = {1: 0.0002, 2: 0.0004, 3: 0.0014}[args.level]
    workers = args.workers if args.workers is not None else (4 if args.fixed else 1)
    with tempfile.TemporaryDirectory() as folder:
        write_records(folder, 1024)
        data = Records(folder, latency_s)
        if args.prepared:
            data, workers = [data[i] for i in range(len(data))], 0
        loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
        model = nn.Sequential(
            nn.Unflatten(1, (1, 256)),
            nn.Conv1d(1, 48, 7, padding=3),
            nn.ReLU(),
            nn.Conv1d(48, 64, 7, stride=2, padding=3),
            nn.ReLU(),
            nn.Conv1d(64, 64, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(64, 5),
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        step = 0
        while step < args.steps:
            for signal, label in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(signal), label)
                loss.backward()
                optimizer.step()
                step += 1
                if step >= args.steps:
                    break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
