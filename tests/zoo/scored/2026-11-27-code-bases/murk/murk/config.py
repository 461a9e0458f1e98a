import os
from dataclasses import dataclass, field


@dataclass
class UNetConfig:
    base: int = 24
    mults: tuple = (1, 2, 3)
    time_dim: int = 96
    classes: int = 10


@dataclass
class Config:
    unet: UNetConfig = field(default_factory=UNetConfig)
    size: int = 16
    images: int = 4096
    batch: int = 32
    timesteps: int = 1000
    iterations: int = 180
    lr: float = 4e-4
    ema_decay: float = 0.995
    label_dropout: float = 0.1
    print_every: int = 30
    strict_grad: bool = True
    seed: int = 77


def from_env():
    return Config(strict_grad=not os.environ.get("REPAIRED"))
