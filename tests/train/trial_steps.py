"""Training steps for trials in other processes: small ones, and ones that end badly."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch


def batch_of(size: int) -> torch.Tensor:
    return torch.zeros(size)


def build_constant() -> Callable[[Any], None]:
    """A step that takes 2 ms whatever its size, up to 8, where the allocator refuses."""

    def step(batch: torch.Tensor) -> None:
        if len(batch) > 8:
            torch.empty(1 << 60)
        time.sleep(0.002)

    return step


def build_killed() -> Callable[[Any], None]:
    def step(batch: torch.Tensor) -> None:
        if len(batch) > 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return step


def build_wrong() -> Callable[[Any], None]:
    def step(batch: torch.Tensor) -> None:
        raise ValueError("the labels are wrong")

    return step
