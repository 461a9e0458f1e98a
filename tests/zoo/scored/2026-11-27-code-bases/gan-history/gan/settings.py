import os
from dataclasses import dataclass


@dataclass
class Settings:
    seed: int = 5
    images: int = 4000
    size: int = 32
    latent: int = 64
    width: int = 48
    batch: int = 64
    iterations: int = 210
    lr_g: float = 2e-4
    lr_d: float = 2e-4
    pool_share: float = 0.5
    pool_limit: int = 0            # 0: no limit
    shared_fakes: bool = False     # use the same generator pass in both updates
    report: int = 40


def from_environment():
    s = Settings()
    mode = os.environ.get("REPAIRED", "")
    if mode in ("first", "all", "1"):
        s.shared_fakes = True
    if mode in ("second", "all", "1"):
        s.pool_limit = 256
    if "GAN_ITERATIONS" in os.environ:
        s.iterations = int(os.environ["GAN_ITERATIONS"])
    return s
