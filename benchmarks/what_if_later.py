"""--model, --loading, --threads ... -> a small training on the CPU, for pairs that no what-if model was made on.

One script for all: each pair of benchmarks/what_if_pairs.py gives the options of its two sides. ``--loading`` says what
making a sample costs: ``python`` computes in the interpreter, ``tensors`` in torch, ``storage`` sleeps, ``mixed`` does
half of each.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES_COUNT = 10
SHAPES = {"mlp": (512,), "wide": (1024,), "gru": (32, 48), "conv": (3, 32, 32), "attention": (96, 128)}


class Samples(Dataset[Any]):
    """``cost_us`` of one sample, in the way that ``loading`` names."""

    def __init__(self, count: int, shape: tuple[int, ...], loading: str, cost_us: int) -> None:
        self.base = torch.randn(64, *shape)
        self.count, self.loading, self.cost_us = count, loading, cost_us
        self.turns = self._calibrate()

    def _calibrate(self) -> int:
        """Turns of the loop that take ``cost_us`` where nothing else runs."""
        started = time.thread_time()
        spin(20_000)
        return round(20_000 * self.cost_us * 1e-6 / (time.thread_time() - started))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        x = self.base[index % 64]
        if self.loading == "python":
            spin(self.turns)
        elif self.loading == "storage":
            time.sleep(self.cost_us * 1e-6)
        elif self.loading == "mixed":
            time.sleep(self.cost_us * 0.5e-6)
            spin(self.turns // 2)
        elif self.loading == "tensors":
            for _ in range(max(1, self.cost_us // 40)):
                x = (x * 1.01).tanh().flip(-1)
        return x, index % CLASSES_COUNT


def spin(turns: int) -> int:
    state = 1
    for _ in range(turns):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    return state


class Reader(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cells = nn.GRU(48, width, batch_first=True)
        self.head = nn.Linear(width, CLASSES_COUNT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = self.cells(x)
        result: torch.Tensor = self.head(out[:, -1])
        return result


def make_model(name: str) -> nn.Module:
    if name == "mlp":
        return nn.Sequential(nn.Linear(512, 768), nn.GELU(), nn.Linear(768, 512), nn.GELU(), nn.Linear(512, 10))
    if name == "wide":
        return nn.Sequential(nn.Linear(1024, 1536), nn.ReLU(), nn.Linear(1536, 1024), nn.ReLU(), nn.Linear(1024, 10))
    if name == "gru":
        return Reader(96)
    if name == "conv":
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 96, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(96, CLASSES_COUNT),
        )  # fmt: skip
    block = nn.TransformerEncoderLayer(128, 4, 384, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.TransformerEncoder(block, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(96 * 128, CLASSES_COUNT)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SHAPES, required=True)
    parser.add_argument("--loading", choices=("none", "python", "storage", "mixed", "tensors"), default="none")
    parser.add_argument("--cost-us", type=int, default=0)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    data = Samples(args.batch * args.accumulate * 20, SHAPES[args.model], args.loading, args.cost_us)
    loader = DataLoader(
        data, batch_size=args.batch, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0
    )
    model = make_model(args.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step = micro = 0
    while step < args.steps:
        for x, y in loader:
            loss = F.cross_entropy(model(x), y) / args.accumulate
            loss.backward()
            micro += 1
            if micro % args.accumulate:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
