import json
from dataclasses import dataclass


@dataclass
class PairConfig:
    seed: int = 21
    pairs: int = 8000
    vocab: int = 2000
    length: int = 24
    hidden: int = 128
    layers: int = 3
    heads: int = 4
    batch_size: int = 96
    max_steps: int = 150
    lr: float = 4e-4
    temperature: float = 0.05
    logging_steps: int = 30
    eval_steps: int = 75
    eval_pairs: int = 192


def load_config(path):
    with open(path) as fh:
        return PairConfig(**json.load(fh))
