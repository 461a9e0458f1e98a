import json
from typing import NamedTuple


class RunSettings(NamedTuple):
    model: str
    resolution: int
    samples: int
    held_out: int
    modes: int
    width: int
    layers: int
    batch: int
    epochs: int
    lr: float
    seed: int


def settings(path="run.json"):
    with open(path) as fh:
        return RunSettings(**json.load(fh))
