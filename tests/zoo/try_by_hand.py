"""A rule, its fix's settings as JSON and a script with arguments -> the script run with that fix applied.

Each technique is applied as a person would by editing the script.

Exits with NOT_APPLICABLE when the script has nothing that the technique could change.
"""

from __future__ import annotations

import functools
import json
import runpy
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

NOT_APPLICABLE = 97
APPLIED: list[str] = []
"""What was changed, in order."""


def apply_autocast(settings: dict[str, Any]) -> None:
    """Outermost module calls run under bf16 autocast; what they return is float32 again, as losses expect."""

    def call_under_autocast(call: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        APPLIED.append("autocast")
        with torch.autocast(settings.get("device_type", "cpu"), dtype=torch.bfloat16):
            out = call(module, *args, **kwargs)
        return torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda t: t.float() if t.dtype == torch.bfloat16 else t, out
        )

    _wrap_outermost(call_under_autocast)


def apply_compile(settings: dict[str, Any]) -> None:
    """Outermost modules are compiled in place when they are first called."""

    def call_compiled(call: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if module._compiled_call_impl is None:
            module.compile()
            APPLIED.append("compile")
        return call(module, *args, **kwargs)

    _wrap_outermost(call_compiled)


def _wrap_outermost(wrapper: Callable[..., Any]) -> None:
    original = torch.nn.Module.__call__
    inside = False

    @functools.wraps(original)
    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside or isinstance(module, torch.nn.modules.loss._Loss):
            return original(module, *args, **kwargs)
        inside = True
        try:
            return wrapper(original, module, *args, **kwargs)
        finally:
            inside = False

    torch.nn.Module.__call__ = call  # type: ignore[method-assign]


def apply_optimizer_settings(settings: dict[str, Any]) -> None:
    """``foreach`` and ``fused`` as the fix says, whatever the script gives."""
    wanted = {k: v for k, v in settings.items() if k in ("foreach", "fused")}
    for name in ("Adam", "AdamW", "SGD", "Adagrad"):
        cls = getattr(torch.optim, name)
        cls.__init__ = _init_with(wanted, cls, cls.__init__)


def _init_with(wanted: dict[str, Any], cls: type, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        # AdamW's constructor calls Adam's: only the outer one's arguments are the script's.
        if type(self) is cls:
            kwargs = {**kwargs, "foreach": None, "fused": None, **wanted}
            APPLIED.append("optimizer")
        original(self, *args, **kwargs)

    return init


def apply_larger_batch(settings: dict[str, Any]) -> None:
    """Every batch size that the script gives to a DataLoader or BatchSampler, times the factor."""
    factor = int(settings.get("factor", 2))
    loader_init, sampler_init = DataLoader.__init__, BatchSampler.__init__
    inside = False

    @functools.wraps(loader_init)
    def init_loader(self: Any, dataset: Any, batch_size: int | None = 1, *args: Any, **kwargs: Any) -> None:
        nonlocal inside
        if batch_size and batch_size > 1:
            batch_size *= factor
            APPLIED.append("batch")
        inside = True
        try:
            loader_init(self, dataset, batch_size, *args, **kwargs)
        finally:
            inside = False

    @functools.wraps(sampler_init)
    def init_sampler(self: Any, sampler: Any, batch_size: int, drop_last: bool) -> None:
        # A DataLoader makes one of these itself, with the size that is already multiplied.
        if not inside:
            batch_size *= factor
            APPLIED.append("batch")
        sampler_init(self, sampler, batch_size, drop_last)

    DataLoader.__init__ = init_loader  # type: ignore[method-assign]
    BatchSampler.__init__ = init_sampler  # type: ignore[method-assign]


TECHNIQUES: dict[str, Callable[[dict[str, Any]], None]] = {
    "full-precision": apply_autocast,
    "uncompiled-model": apply_compile,
    "slow-optimizer": apply_optimizer_settings,
    "small-batch": apply_larger_batch,
}


def main() -> int:
    rule, settings, script = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    TECHNIQUES[rule](settings)
    sys.argv = sys.argv[3:]
    runpy.run_path(script, run_name="__main__")
    return 0 if APPLIED else NOT_APPLICABLE


if __name__ == "__main__":
    sys.exit(main())
