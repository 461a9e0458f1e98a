"""A training of seconds, for tests of the Trainer; `python small.py PHASES` runs several, each on ranks of its own.

PHASES is JSON: a list of [ranks, folder, losses, key=value ...]. Ranks are forked: torch is imported once.
"""

import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from hotloop import Checkpoints, Trainer
from hotloop.core.strategy import Choice, Strategy


class Noisy(Dataset[Any]):
    """Samples that draw from torch's and Python's generators when they are fetched."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(count, 8, generator=generator)
        self.noise = 0.0

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        x = self.inputs[index]
        return index, x + self.noise * (torch.rand(8) + random.random()), x.sum()


class Losses:
    """Keeps each step's loss and samples; stops itself by a signal at a step."""

    def __init__(self, stop_at: int = 0, number: int = signal.SIGTERM) -> None:
        self.losses: dict[int, float] = {}
        self.samples: dict[int, list[int]] = {}
        self.validations: dict[int, float] = {}
        self.fetched: list[int] = []
        self.stop_at = stop_at
        self.number = number

    def on_step_end(self, trainer: Trainer, loss: torch.Tensor) -> None:
        step = trainer.place.step
        self.losses[step] = loss.item()
        self.samples[step], self.fetched = self.fetched, []
        if step == self.stop_at:
            if self.number == signal.SIGKILL:
                torch.distributed.barrier()  # all ranks are killed at the same step
            for worker in multiprocessing.active_children():
                os.kill(worker.pid or 0, self.number)
            os.kill(os.getpid(), self.number)

    def on_validation(self, trainer: Trainer, loss: float) -> None:
        self.validations[trainer.place.step] = loss


def make_trainer(
    callback: Losses, *, width: int = 16, dropout: float = 0.1, norm: bool = False, **options: Any
) -> Trainer:
    torch.manual_seed(2)
    middle = torch.nn.BatchNorm1d(width) if norm else torch.nn.Dropout(dropout)
    model = torch.nn.Sequential(torch.nn.Linear(8, width), middle, torch.nn.Tanh(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(model: Any, batch: Any) -> torch.Tensor:
        indices, x, y = batch
        if torch.is_grad_enabled():
            callback.fetched += indices.tolist()
        return torch.nn.functional.mse_loss(model(x).squeeze(1), y)

    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.7)
    return Trainer(model, optimizer, step, callbacks=[callback], scheduler=scheduler, **options)


class Blocks(torch.nn.Module):
    """Blocks of odd sizes: no dimension is a multiple of the ranks, and the last has a single row."""

    def __init__(self, width: int = 9) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, width)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(width, 5), torch.nn.Tanh(), torch.nn.Linear(5, width)) for _ in range(2)
        )
        self.last = torch.nn.Linear(width, 1)
        self.register_buffer("scale", torch.rand(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x) * self.scale
        result: torch.Tensor = self.last(x)
        return result


def make_sharded_trainer(callback: Losses, rank: int, choices: tuple[Choice, ...], **options: Any) -> Trainer:
    """The model cut over the ranks; ranks begin with other weights, rank 0's count."""
    torch.manual_seed(2 + rank)

    def step(model: Any, batch: Any) -> torch.Tensor:
        indices, x, y = batch
        if torch.is_grad_enabled():
            callback.fetched += indices.tolist()
        return torch.nn.functional.mse_loss(model(x).squeeze(1), y)

    return Trainer(
        Blocks(),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        step,
        callbacks=[callback],
        strategy=Strategy(choices=choices),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.7),
        clip_norm=1.0,
        **options,
    )


def make_loader(count: int = 44, batch_size: int = 4, noise: float = 0.1, **options: Any) -> Any:
    data = Noisy(count)
    data.noise = noise
    return DataLoader(data, batch_size=batch_size, shuffle=True, **options)


def main(folder: str, losses: str, *arguments: str) -> None:
    options = dict(one.split("=") for one in arguments)
    number = signal.SIGKILL if "kill_at" in options else signal.SIGTERM
    stop_at = int(options.get("stop_at", options.get("kill_at", "0")))
    callback = Losses(stop_at, number)
    kept = Checkpoints(folder=folder, every_steps=3)
    if "technique" in options:
        settings: dict[str, Any] = {"cpu_offload": True} if "cpu_offload" in options else {}
        technique = options["technique"]
        choices = (Choice(technique=technique, settings=settings),) if technique else ()
        if "parts" in options:
            parts = {"micro_batches": int(options["parts"])}
            choices += (Choice(technique="accumulation", settings=parts),)
        accumulate = int(options.get("accumulate", "1"))
        trainer = make_sharded_trainer(
            callback, int(os.environ["RANK"]), choices, checkpoint=kept, accumulate=accumulate
        )
    else:
        trainer = make_trainer(callback, dropout=0.0, norm="norm" in options, checkpoint=kept)
    steps = options.get("max_steps")
    validation = make_loader(9, noise=0.0) if "technique" in options else None
    try:
        loader = make_loader(int(options.get("count", "44")), noise=0.0, num_workers=int(options.get("workers", "0")))
        trainer.fit(loader, validation, epochs=4, max_steps=None if steps is None else int(steps))
    finally:
        local = [getattr(one, "_local_tensor", one).numel() for one in trainer.model.parameters()]
        found = {"losses": callback.losses, "samples": callback.samples, "parameters_count": sum(local)}
        found["weights"] = [getattr(one, "_local_tensor", one).flatten().tolist() for one in trainer.model.parameters()]
        found["validations"] = callback.validations
        found["buffers"] = [one.tolist() for one in trainer.model.buffers()]
        Path(f"{losses}.{trainer.ranks.rank}").write_text(json.dumps(found))


def fork_ranks(port: int, ranks: int, *arguments: str) -> None:
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(ranks)}
            code = 1
            try:
                main(*arguments)
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for phase in json.loads(sys.argv[1]):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        fork_ranks(port, *phase)
