"""Settings of the two-tower retrieval model."""
import os
from dataclasses import dataclass


@dataclass
class Settings:
    users: int = 4_000
    items: int = 400_000
    history: int = 10
    dim: int = 32
    hidden: int = 64
    batch: int = 1024
    negatives: int = 16
    steps: int = 200
    lr: float = 2e-3
    row_gradients: bool = False
    sampler: str = "exact"
    report_every: int = 40
    seed: int = 5


def read_settings() -> Settings:
    s = Settings()
    mode = os.environ.get("REPAIRED", "")
    s.row_gradients = mode in ("1", "first", "all")
    s.sampler = "sorted" if mode in ("1", "second", "all") else "exact"
    return s
