import argparse
from dataclasses import dataclass, fields


@dataclass
class Config:
    seed: int = 4
    graphs: int = 4096
    nodes: int = 24
    features: int = 32
    hidden: int = 128
    layers: int = 4
    batch: int = 128
    steps: int = 420
    eval_graphs: int = 256
    eval_every: int = 140
    lr: float = 1e-3
    log_every: int = 40


def parse():
    ap = argparse.ArgumentParser()
    for f in fields(Config):
        ap.add_argument("--" + f.name.replace("_", "-"), type=type(f.default), default=f.default)
    return Config(**vars(ap.parse_args()))
