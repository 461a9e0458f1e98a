"""Modules -> the same modules, their activations computed again in backward where a first call shows that they can."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hotloop.change.apply.forward import wrap_forward

KEPT_OPERATORS = (
    "mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math",
)  # fmt: skip
"""Results of these cost most to compute again: the policy 'matmuls' keeps them."""

MOST_LEVELS = 4
"""Depth to which arguments are looked into: a cache of keys and values holds layers, which hold tensors."""
MOST_MEMBERS = 256
"""This many parts of a list, dictionary or object are looked at."""


class Recomputation:
    """Checkpoints the forwards of ``blocks``. The first call of each class runs plainly and is watched.

    A block that changes its buffers, attributes or arguments, or draws from Python's or NumPy's random numbers, would
    do so again in backward: then ``refuse(why)`` is called and everything is as before.
    """

    def __init__(self, blocks: Sequence[Any], policy: str, refuse: Callable[[str], None]) -> None:
        self._context_fn = make_context_fn(policy)
        self._refuse = refuse
        self._checked: set[type] = set()
        self._is_off = False
        self.inside = 0
        """How many of our own calls of checkpoint() are being made."""
        self._undo = [wrap_forward(block, functools.partial(self._run, block)) for block in blocks]

    def undo(self) -> None:
        self._is_off = True
        for take_back in self._undo:
            take_back()

    def _run(self, block: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        if self._is_off or not block.training or not torch.is_grad_enabled():
            return call(*args, **kwargs)
        function = functools.partial(call, **kwargs) if kwargs else call
        options: dict[str, Any] = {} if self._context_fn is None else {"context_fn": self._context_fn}
        if torch.compiler.is_compiling():
            return checkpoint(function, *args, use_reentrant=False, **options)
        if type(block) not in self._checked:
            return self._try(block, call, args, kwargs)
        self.inside += 1
        try:
            return checkpoint(function, *args, use_reentrant=False, **options)
        finally:
            self.inside -= 1

    def _try(self, block: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        before = watch_state(block, args, kwargs)
        result = call(*args, **kwargs)
        after = watch_state(block, args, kwargs)
        self._checked.add(type(block))
        changed = next((key for key in before if after.get(key) != before[key]), None)
        if changed is not None or after.keys() != before.keys():
            self.undo()
            what = changed or "an attribute"
            self._refuse(
                f"reverted: a forward of {type(block).__name__} changes {what}, and recomputation would repeat the "
                "change"
            )
        return result


def make_context_fn(policy: str) -> Callable[[], Any] | None:
    """checkpoint()'s ``context_fn`` for 'matmuls'; None for 'all'."""
    if policy == "all":
        return None
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    packets = [getattr(torch.ops.aten, name, None) for name in KEPT_OPERATORS]
    kept = [packet.default for packet in packets if packet is not None and hasattr(packet, "default")]
    return functools.partial(create_selective_checkpoint_contexts, kept)


def watch_state(block: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The state that a forward with these arguments must not change, by a name for the user."""
    found: dict[str, Any] = {"Python's random numbers": hash(random.getstate())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state(legacy=True)
        found["NumPy's random numbers"] = (bytes(state[1]), state[2])
    for name, part in block.named_modules():
        prefix = f"{name}." if name else ""
        for key, buffer in part._buffers.items():
            if buffer is not None:
                found[f"its buffer {prefix}{key}"] = (id(buffer), buffer._version)
        for key, value in vars(part).items():
            if isinstance(value, (bool, int, float, str, list, dict, set)) and not key.startswith("_"):
                size = len(value) if isinstance(value, (list, dict, set)) else value
                found[f"its attribute {prefix}{key}"] = (type(value), size)
    for key, value in (*enumerate(args), *kwargs.items()):
        found[f"its argument {key}"] = _state_of(value, MOST_LEVELS)
    return found


def _state_of(value: Any, levels: int) -> Any:
    """A value that is equal before and after a call only if the call changed nothing in place."""
    if isinstance(value, torch.Tensor):
        return (id(value), 0 if value.is_inference() else value._version)
    if isinstance(value, (bool, int, float, str, bytes, type(None))):
        return (value,)
    if levels == 0 or isinstance(value, (type, torch.nn.Module)) or callable(value):
        return id(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return (id(value), len(value), [_state_of(one, levels - 1) for one in list(value)[:MOST_MEMBERS]])
    parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    members = [(id(key), _state_of(one, levels - 1)) for key, one in list(parts.items())[:MOST_MEMBERS]]
    return (id(value), len(parts), members)
