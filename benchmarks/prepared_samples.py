"""What cache-samples and group-by-length win on two small trainings, in CPU time of the process, by epoch.

    python benchmarks/prepared_samples.py            about a minute on a quiet core

Epochs without and with a technique alternate in one process, so that both meet the same machine. The least of the
rounds counts; its CPU time does not hold what other programs took.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from hotloop.apply.api import apply_strategy
from hotloop.core.strategy import Choice, Strategy

FOLDER = Path(__file__).with_name("samples")
Epoch = Callable[[], float]


def load_script(name: str) -> Any:
    """One of the scripts of benchmarks/samples as a module."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_epoch(loader: Any, model: Any, optimizer: Any) -> Epoch:
    """A function that trains one epoch and answers its CPU seconds."""

    def run() -> float:
        begun_s = time.process_time()
        for inputs, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return time.process_time() - begun_s

    return run


def pictures(technique: str | None) -> Epoch:
    script = load_script("decode_images")
    loader = DataLoader(script.Pictures(192), batch_size=16, shuffle=True, drop_last=True)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 24, 3), torch.nn.Flatten(), torch.nn.Linear(24 * 900, 10))
    return make_epoch(apply(technique, loader), model, torch.optim.SGD(model.parameters(), 0.001))


def reviews(technique: str | None) -> Epoch:
    script = load_script("pad_reviews")
    data = script.Reviews(1600)
    loader = DataLoader(data, batch_size=16, shuffle=True, drop_last=True, collate_fn=script.collate)
    model = script.Reader()
    return make_epoch(apply(technique, loader), model, torch.optim.AdamW(model.parameters(), 1e-3))


def apply(technique: str | None, loader: Any) -> Any:
    if technique is None:
        return loader
    applied = apply_strategy(Strategy(choices=(Choice(technique=technique, settings={}),)), loader=loader)
    for record in applied.records:
        print(f"  {record.status}: {record.detail}")
    return applied.loader


def compare(make: Callable[[str | None], Epoch], technique: str, rounds: int) -> None:
    print(technique)
    plain, treated = make(None), make(technique)
    first = plain(), treated()
    later = [(plain(), treated()) for _ in range(rounds)]
    least = min(one for one, _ in later), min(one for _, one in later)
    print(f"  first epoch: {first[0]:.2f} s without, {first[1]:.2f} s with it")
    won = 1 - least[1] / least[0]
    print(f"  later epochs, the least of {rounds}: {least[0]:.2f} s and {least[1]:.2f} s: {won:.2f} won")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    compare(pictures, "cache-samples", args.rounds)
    compare(reviews, "group-by-length", args.rounds)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
