"""KIND FOLDER --steps N: a small training on gloo that stops at SIGTERM and resumes, for slurm_proof.py.

plain: DistributedDataParallel with torch.save, as users write it. trainer: hotloop's Trainer. Rank 0 appends one line
to FOLDER/log.txt at every start, stop and end, and writes the SHA-256 of the final parameters to FOLDER/final.txt.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SAMPLES, BATCH, SAVE_EVERY = 4096, 8, 10


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x = torch.randn(64, generator=torch.Generator().manual_seed(index))
        return x, x.sum().reshape(1)


def build_model() -> torch.nn.Module:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(128, 1)]
    return torch.nn.Sequential(*layers)


def note(folder: Path, text: str) -> None:
    if int(os.environ["RANK"]) == 0:
        with (folder / "log.txt").open("a") as file:
            file.write(f"{text} {time.time():.3f} restart={os.environ.get('SLURM_RESTART_COUNT', '0')}\n")


def finish(folder: Path, model: Any, step: int) -> None:
    if int(os.environ["RANK"]) == 0:
        digest = hashlib.sha256()
        for name, value in sorted(model.state_dict().items()):
            digest.update(name.encode() + value.detach().numpy().tobytes())
        (folder / "final.txt").write_text(digest.hexdigest())
    note(folder, f"end {step}")


def train_plainly(options: argparse.Namespace) -> None:
    folder = Path(options.folder)
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    path, step = folder / "checkpoint.pt", 0
    torch.manual_seed(100 + rank)
    if path.exists():
        kept = torch.load(path, weights_only=True)
        model.module.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        torch.set_rng_state(kept["random"][rank])
        step = kept["step"]
    note(folder, f"start {step}")

    def save() -> None:
        random: list[Any] = [None] * world
        dist.all_gather_object(random, torch.get_rng_state())
        if rank == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "random": random, "step": step}, f"{path}.tmp")
            time.sleep(options.save_s)
            os.replace(f"{path}.tmp", path)
        dist.barrier()

    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(5)).repeat(4)
    mine = order[step * BATCH * world :].reshape(-1, world, BATCH)[:, rank].tolist()
    workers: dict[str, Any] = {"num_workers": options.workers, "generator": torch.Generator().manual_seed(1)}
    loader = iter(DataLoader(Samples(), batch_sampler=mine, **workers))
    while step < options.steps:
        x, y = next(loader)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        step += 1
        time.sleep(options.step_s)
        stop = torch.tensor(len(asked))
        dist.all_reduce(stop, dist.ReduceOp.MAX)
        if stop > 0:
            save()
            note(folder, f"stop {step}")
            return
        if step % SAVE_EVERY == 0:
            save()
    finish(folder, model.module, step)


def train_by_trainer(options: argparse.Namespace) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
    from hotloop import Checkpoints, Trainer

    folder = Path(options.folder)

    class Log:
        def on_fit_start(self, trainer: Any) -> None:
            note(folder, f"start {trainer.place.step}")

        def on_step_end(self, trainer: Any, loss: Any) -> None:
            time.sleep(options.step_s)

    def step(model: Any, batch: Any) -> Any:
        x, y = batch
        return torch.nn.functional.mse_loss(model(x), y)

    trainer = Trainer(
        build_model(),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        step,
        callbacks=[Log()],
        checkpoint=Checkpoints(folder=folder / "checkpoints", every_steps=SAVE_EVERY, keep=3),
    )
    loader = DataLoader(Samples(), batch_size=BATCH, shuffle=True, num_workers=options.workers)
    try:
        trainer.fit(loader, epochs=1_000_000, max_steps=options.steps)
    except SystemExit:
        note(folder, f"stop {trainer.place.step}")
        raise
    finish(folder, trainer.model.module, trainer.place.step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("plain", "trainer"))
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--step-s", type=float, default=0.1)
    parser.add_argument("--save-s", type=float, default=0.0, help="how much longer a save of `plain` takes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    {"plain": train_plainly, "trainer": train_by_trainer}[options.kind](options)


if __name__ == "__main__":
    main()
