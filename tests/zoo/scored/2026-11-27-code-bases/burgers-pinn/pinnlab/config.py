import argparse
import json
import os
from dataclasses import dataclass, fields


@dataclass
class SolverConfig:
    equation: str = "burgers"
    hidden: int = 96
    depth: int = 5
    fourier_bands: int = 16
    n_interior: int = 1024
    n_initial: int = 256
    n_boundary: int = 256
    pool_size: int = 40000
    max_iters: int = 500
    lr: float = 1e-3
    lr_final: float = 1e-4
    weight_initial: float = 10.0
    weight_boundary: float = 1.0
    log_every: int = 100
    seed: int = 17
    # stop with the name of the operator when a residual becomes nan
    trace_nan: bool = True


def load_config(argv=None):
    parser = argparse.ArgumentParser("pinnlab")
    parser.add_argument("--config", default="config.json")
    parser.add_argument("--iters", type=int, default=None)
    ns = parser.parse_args(argv)
    with open(ns.config) as fh:
        raw = json.load(fh)
    known = {f.name for f in fields(SolverConfig)}
    unknown = set(raw) - known
    if unknown:
        raise ValueError(f"unknown options: {sorted(unknown)}")
    cfg = SolverConfig(**raw)
    if ns.iters is not None:
        cfg.max_iters = ns.iters
    if os.environ.get("REPAIRED"):
        cfg.trace_nan = False
    return cfg
