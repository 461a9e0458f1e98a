"""A method's name -> its hook, and a hook -> the DistributedDataParallel that sends with it, also in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hotloop.change.apply.method_settings import READ_BY, why_unread
from hotloop.core.errors import UsageError

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
    """The hook of that name, one of METHODS, after that many exchanges in bf16. Raises ValueError for any other."""
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
    """hotloop's hooks of the DistributedDataParallel modules in a model, in the model's order."""
    found = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
    return [state for ddp in found for _, state in ddp._comm_hooks if isinstance(state, GradientHook)]


class CompressedDDP(DistributedDataParallel):
    """DistributedDataParallel with one of hotloop's communication hooks.

        model = hotloop.CompressedDDP(model, method="topk", ratio=0.01)

    ``method``: bf16, fp16, int8, topk (``ratio`` 0.01, ``momentum`` 0) or powersgd (``rank`` 4); the last two may begin
    after ``warm_up_steps`` in bf16. With topk, use Adam with ``betas=(0, 0.999)``, or SGD without momentum and its
    momentum here. Every other argument is DistributedDataParallel's. ``model.compression`` says what was done; on one
    rank nothing is sent, and no hook is registered. A checkpoint needs ``compression_state()`` of each rank together
    with the model's state to resume bit for bit; hotloop's Trainer keeps it by itself.

    Raises UsageError for an unknown method, settings that are impossible or belong to another method, gradients other
    than float32, and where torch.distributed is not initialized.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        method: str = "bf16",
        *,
        ratio: float | None = None,
        momentum: float | None = None,
        rank: int | None = None,
        warm_up_steps: int | None = None,
        **arguments: Any,
    ) -> None:
        named = {"ratio": ratio, "momentum": momentum, "rank": rank, "warm_up_steps": warm_up_steps}
        given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        try:
            hook = make_hook(method, **given)
        except ValueError as error:
            raise UsageError(str(error)) from error
        unread = next((name for name in given if method not in READ_BY[name]), None)
        if unread is not None:
            raise UsageError(why_unread(unread, method))
        dtypes = {str(one.dtype) for one in module.parameters() if one.requires_grad}
        if dtypes - {"torch.float32"}:
            raise UsageError(f"gradients are {', '.join(sorted(dtypes))}: only float32 is compressed; use DDP itself")
        if not dist.is_available() or not dist.is_initialized():
            raise UsageError("torch.distributed is not initialized: call init_process_group, and start with torchrun")
        super().__init__(module, **arguments)
        self.hook: GradientHook | None = None
        self.compression = "none: one rank, nothing is sent"
        if dist.get_world_size(self.process_group) > 1:
            register(self, hook)
            self.hook = hook
            self.compression = f"{method}: {hook.describe()}"

    def extra_repr(self) -> str:
        return f"compression={self.compression!r}"

    def compression_state(self) -> dict[str, Any]:
        """The unsent gradients that this rank keeps: different on each rank, empty where nothing is kept."""
        return {} if self.hook is None else self.hook.state_dict()

    def load_compression_state(self, state: Mapping[str, Any]) -> None:
        """Continue with what ``compression_state`` returned on this rank. Raises UsageError for what does not fit."""
        if self.hook is None:
            return
        try:
            self.hook.load_state_dict(state)
        except ValueError as error:
            raise UsageError(f"the state does not fit {self.compression}: {error}") from error
