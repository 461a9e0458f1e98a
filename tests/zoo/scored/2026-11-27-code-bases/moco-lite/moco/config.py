import json
import os
from dataclasses import dataclass, fields


@dataclass
class Config:
    seed: int = 7
    n_images: int = 6000
    image_size: int = 32
    n_groups: int = 40
    batch_size: int = 128
    steps: int = 200
    width: int = 24
    dim: int = 64
    queue_size: int = 49152
    temperature: float = 0.2
    momentum: float = 0.99
    lr: float = 0.06
    weight_decay: float = 1e-4
    print_every: int = 40
    queue_kind: str = "fifo"          # "fifo" | "ring"


def load_config(path):
    with open(path) as fh:
        raw = json.load(fh)
    known = {f.name for f in fields(Config)}
    unknown = set(raw) - known
    if unknown:
        raise ValueError(f"unknown options: {sorted(unknown)}")
    cfg = Config(**raw)
    if os.environ.get("REPAIRED"):
        cfg.queue_kind = "ring"
    return cfg
