"""A method's name -> its hook, and a hook -> the DistributedDataParallel that sends by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .blocks import Int8Hook
from .hooks import CastHook, GradientHook, TopKHook, WarmUpHook
from .low_rank import LowRankHook

_MAKERS: Mapping[str, Callable[..., GradientHook]] = {
    "bf16": lambda **_: CastHook(torch.bfloat16),
    "fp16": lambda **_: CastHook(torch.float16),
    "int8": lambda **_: Int8Hook(),
    "topk": lambda ratio, momentum, **_: TopKHook(ratio, momentum),
    "powersgd": lambda rank, **_: LowRankHook(rank),
}
METHODS = tuple(_MAKERS)


def make_hook(
    method: str, *, ratio: float = 0.01, momentum: float = 0.0, rank: int = 4, warm_up_steps: int = 0
) -> GradientHook:
    """The hook of that name, one of METHODS, after so many exchanges in bf16. Raises ValueError for any other."""
    if method not in _MAKERS:
        raise ValueError(f"method is {method!r}: choose one of {', '.join(METHODS)}")
    if warm_up_steps < 0:
        raise ValueError(f"warm_up_steps is {warm_up_steps}: choose 0 or more")
    hook = _MAKERS[method](ratio=ratio, momentum=momentum, rank=rank)
    return WarmUpHook(hook, warm_up_steps) if warm_up_steps > 0 else hook


def register(model: Any, hook: GradientHook) -> None:
    """Make a DistributedDataParallel send its gradients by this hook, before its first backward."""
    hook.names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    hook.group = model.process_group

    def send_bucket(state: GradientHook, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations as text
        return state.send(bucket)

    model.register_comm_hook(hook, send_bucket)


def hooks_of(model: Any) -> list[GradientHook]:
    """Hotloop's hooks of the DistributedDataParallel modules in a model, in the model's order."""
    found = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
    return [state for ddp in found for _, state in ddp._comm_hooks if isinstance(state, GradientHook)]
