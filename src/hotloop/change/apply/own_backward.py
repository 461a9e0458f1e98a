"""Outputs of a forward under autocast -> the script's own backward that would meet two dtypes there; None if none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def find_mixed_backward(output: Any) -> str | None:
    """Class and dtypes of the first ``autograd.Function`` of the script whose backward gets tensors of several dtypes.

    Backward runs outside of autocast. A product of a bfloat16 gradient and a float32 weight, which autocast makes fit
    in forward, is an error there, unless ``custom_bwd`` switches autocast on again.
    """
    waiting = [one.grad_fn for one in _tensors(output) if one.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        function = getattr(type(node), "_forward_cls", None)
        if function is not None and not _is_safe(function):
            dtypes = _dtypes_in(node)
            if len(dtypes) > 1:
                return f"{function.__name__} defines its own backward without custom_bwd, for {' and '.join(dtypes)}"
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return None


def _is_safe(function: Any) -> bool:
    """Whether it is torch's own or hotloop's, or runs its backward as autocast ran its forward (``custom_bwd``)."""
    if function.__module__.partition(".")[0] in ("torch", "hotloop"):
        return True
    code = getattr(function.backward, "__code__", None)
    return getattr(code, "co_name", None) == "decorate_bwd"


def _dtypes_in(node: Any) -> list[str]:
    """Floating dtypes of the gradients that this backward is given and of what its forward kept."""
    kept = [*(node.saved_tensors or ()), *vars(node).values()]
    found = {one.dtype for one in _tensors(kept) if one.is_floating_point()}
    found |= {one.dtype for one in node._input_metadata if one.dtype.is_floating_point}
    return sorted(str(one).removeprefix("torch.") for one in found)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from (one for part in value.values() for one in _tensors(part))
    elif isinstance(value, (list, tuple)):
        yield from (one for part in value for one in _tensors(part))
    elif hasattr(value, "__dataclass_fields__"):
        yield from (one for name in value.__dataclass_fields__ for one in _tensors(getattr(value, name, None)))
