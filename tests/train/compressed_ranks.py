"""Two ranks that train by each method, killed on the way where asked -> the weights' bits and losses as JSON of rank 0.

compressed_ranks.py FOLDER OUT STORE: in each training, rank 1 ends itself with SIGKILL once, between two checkpoints.
Whoever starts both ranks again comes further; at last each method trains without a kill too, and both ends are written
to OUT.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hotloop import Checkpoints, Trainer
from hotloop.core.strategy import Choice, Strategy

METHODS: dict[str, dict[str, Any]] = {
    "topk": {"method": "topk", "ratio": 0.05, "warm_up_steps": 10},
    "powersgd": {"method": "powersgd", "rank": 2, "warm_up_steps": 5},
}
"""The kill follows the checkpoint of step 8: before the end of the first warm-up, and after that of the second."""
STEPS, KILLED_AT = 16, 9


class Killer:
    """Also logs the losses: what a checkpoint holds of them shows that a resume made no step twice."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker
        self.losses: list[str] = []

    def on_step_end(self, trainer: Trainer, loss: torch.Tensor) -> None:
        self.losses.append(float(loss).hex())
        if trainer.place.step == KILLED_AT and trainer.ranks.rank == 1 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = list(state["losses"])


def train(folder: Path, settings: dict[str, Any], kill: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 700), nn.Tanh(), nn.Linear(700, 700), nn.Tanh(), nn.Linear(700, 8))
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(512, 64, generator=draws)
    folder.mkdir(parents=True, exist_ok=True)
    killer = Killer(folder / "killed")
    if not kill:
        killer.marker.touch()
    trainer = Trainer(
        model,
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        lambda net, batch: nn.functional.mse_loss(net(batch[0]), batch[1]),
        strategy=Strategy(choices=(Choice(technique="compress-gradients", settings=settings),)),
        checkpoint=Checkpoints(folder=folder / "checkpoints", every_steps=4),
        callbacks=[killer],
    )
    found = trainer.fit(DataLoader(TensorDataset(x, x[:, :8].tanh()), batch_size=16), epochs=2, max_steps=STEPS)
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    return {
        "bits": hashlib.sha256(weights.numpy().tobytes()).hexdigest(),
        "losses": killer.losses,
        "applied": [record.status for record in found.records],
        "resumed": found.resumed_from is not None,
    }


def main(folder: str, out: str, store: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(os.environ["RANK"]), world_size=2
    )
    torch.set_num_threads(1)
    found = {
        kind: {
            name: train(Path(folder) / kind / name, settings, kind == "killed") for name, settings in METHODS.items()
        }
        for kind in ("killed", "whole")
    }
    if torch.distributed.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
