"""FOLDER, LOSSES and options -> a training whose every step's loss and samples are appended to LOSSES.<rank>.

Started by preemption.py. HOTLOOP_SLOW_SAVES_MS makes each fsync of this script slower, so that kills meet saves.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from hotloop import Checkpoints, Trainer
from hotloop.core.strategy import Choice, Strategy

SAMPLES_COUNT = 601
"""No multiple of a step: every epoch ends with a smaller one."""


class Samples(Dataset[Any]):
    def __init__(self, noise: float) -> None:
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(SAMPLES_COUNT, 64, generator=generator)
        self.noise = noise

    def __len__(self) -> int:
        return SAMPLES_COUNT

    def __getitem__(self, index: int) -> Any:
        x = self.inputs[index]
        return index, x + self.noise * torch.rand(64), x.sum()


class Log:
    """Appends one line a step, flushed before the next begins."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.samples: list[int] = []

    def on_fit_start(self, trainer: Trainer) -> None:
        self.file = open(f"{self.path}.{trainer.ranks.rank}", "a", buffering=1)  # noqa: SIM115 (to the end, or the kill)
        self.file.write(f"start {trainer.place.step}\n")

    def on_step_end(self, trainer: Trainer, loss: torch.Tensor) -> None:
        samples, self.samples = self.samples, []
        self.file.write(f"{trainer.place.step} {loss.item().hex()} {','.join(map(str, samples))}\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("losses")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--sharded", action="store_true", help="FSDP2 in place of DistributedDataParallel")
    parser.add_argument("--exact", action="store_true", help="no random draws: for runs on another number of ranks")
    options = parser.parse_args()
    slower_s = int(os.environ.get("HOTLOOP_SLOW_SAVES_MS", "0")) / 1000
    if slower_s:
        fsync = os.fsync

        def slow_fsync(descriptor: int) -> None:
            time.sleep(slower_s)
            fsync(descriptor)

        os.fsync = slow_fsync
    torch.set_num_threads(1)
    torch.manual_seed(1)
    width = options.width
    layers: list[torch.nn.Module] = [torch.nn.Linear(64, width)]
    for _ in range(4):
        layers += [torch.nn.GELU(), torch.nn.Dropout(0.0 if options.exact else 0.1), torch.nn.Linear(width, width)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))
    log = Log(options.losses)

    def step(model: Any, batch: Any) -> torch.Tensor:
        indices, x, y = batch
        log.samples += indices.tolist()
        return torch.nn.functional.mse_loss(model(x).squeeze(1), y)

    trainer = Trainer(
        model,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        step,
        strategy=Strategy(choices=(Choice(technique="fsdp2"),)) if options.sharded else None,
        callbacks=[log],
        clip_norm=1.0,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000),
        checkpoint=Checkpoints(folder=options.folder, every_steps=7, keep=3),
    )
    data = Samples(0.0 if options.exact else 0.1)
    trainer.fit(DataLoader(data, batch_size=16, shuffle=True), epochs=1_000_000, max_steps=options.steps)


if __name__ == "__main__":
    main()
