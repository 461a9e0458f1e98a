import json
import os
from dataclasses import dataclass


@dataclass
class ExperimentConfig:
    seed: int = 1
    series: int = 64
    length: int = 4000
    context: int = 256
    horizon: int = 48
    patch: int = 8
    d_model: int = 128
    layers: int = 4
    heads: int = 4
    batch_size: int = 64
    max_steps: int = 220
    lr: float = 5e-4
    logging_steps: int = 40
    monitor: str = "all"           # which layers the activation monitor watches: "all" | "none"

    @classmethod
    def load(cls, path):
        with open(path) as fh:
            cfg = cls(**json.load(fh))
        if os.environ.get("REPAIRED"):
            cfg.monitor = "none"
        return cfg
