import json
import os
from dataclasses import dataclass


@dataclass
class LMConfig:
    seed: int = 9
    steps: int = 90
    accumulate: int = 4
    micro_batch: int = 4
    block: int = 64
    d_model: int = 320
    layers: int = 3
    heads: int = 5
    vocab: int = 2048
    lr: float = 6e-4
    warmup: int = 10
    log_every: int = 15
    trace_nans: bool = True
    recompute_mlp: bool = True     # keep the MLP's input only, to save memory


def read_config(path):
    cfg = LMConfig(**json.load(open(path)))
    mode = os.environ.get("REPAIRED", "")
    cfg.trace_nans = cfg.trace_nans and mode not in ("1", "all", "first")
    cfg.recompute_mlp = cfg.recompute_mlp and mode not in ("1", "all", "second")
    return cfg
