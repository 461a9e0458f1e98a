from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    clips: int = 3072
    held_out: int = 256
    keywords: int = 12
    bands: int = 40
    frames: int = 98
    channels: int = 64
    blocks: int = 4
    batch: int = 96
    epochs: int = 10
    lr: float = 2e-3
    mask_frames: int = 16
    mask_bands: int = 6
    watch_every: int = 40
    log_every: int = 30
    seed: int = 90
