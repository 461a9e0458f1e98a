"""An optimizer's momentum with top-k: what a hook holds back arrives late, and momentum delays its effect further.

The optimizer continues in the old direction for 1 / (1 - momentum) steps after an element arrived; meanwhile the ranks
collect gradients of weights that have not moved yet, and send too much. Deep Gradient Compression (Lin et al., ICLR
2018, section 3.2) therefore puts SGD's momentum before the selection. Adam's first moment is a mean and not a sum: with
beta1 = 0 its steps keep their size. Measured in docs/communication-quality.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hotloop.core.techniques import Applied, Effect

from .hooks import GradientHook, TopKHook, WarmUpHook


def lower_momentum(optimizer: Any, hooks: Sequence[GradientHook], most: float) -> Effect:
    """With these hooks' top-k: beta1 of an Adam is at most ``most``, an SGD's momentum acts before the selection.

    Only inside steps whose gradients came by top-k: not in its warm-up, nor in what ``state_dict`` shows. None where
    there is nothing to lower.
    """
    known = {key for hook in hooks for key in hook.names}
    groups = optimizer.param_groups
    if not any(id(one) in known for group in groups for one in group["params"]):
        return None
    name = type(optimizer).__name__
    if "Adam" in name and "betas" in groups[0]:
        own = max(float(group["betas"][0]) for group in groups)
        if own <= most:
            return None
        _change_in_steps(optimizer, hooks, "betas", lambda betas: (min(float(betas[0]), most), *betas[1:]))
        text = f"{name} steps with beta1 {{most_momentum:g}} instead of {own:g} on the part that topk sent"
        return Applied(text=text, values={"most_momentum": most})
    own = max(float(group.get("momentum", 0.0)) for group in groups)
    if own <= most:
        return None
    for hook in hooks:
        topk = hook.later if isinstance(hook, WarmUpHook) else hook
        assert isinstance(topk, TopKHook)
        topk.momentum = topk.momentum or own
    _change_in_steps(optimizer, hooks, "momentum", lambda _: 0.0)
    return Applied(text=f"{name}'s momentum {{momentum:g}} acts before topk selects", values={"momentum": own})


def _change_in_steps(optimizer: Any, hooks: Sequence[GradientHook], key: str, change: Callable[[Any], Any]) -> None:
    own: list[Any] = []
    optimizer.register_step_pre_hook(partial(_put, hooks, own, key, change))
    optimizer.register_step_post_hook(partial(_put_back, own, key))


def _put(
    hooks: Sequence[GradientHook],
    own: list[Any],
    key: str,
    change: Callable[[Any], Any],
    optimizer: Any,
    args: Any,
    kwargs: Any,
) -> None:
    if any(hook.is_late for hook in hooks):
        own[:] = [group[key] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group[key] = change(group[key])


def _put_back(own: list[Any], key: str, optimizer: Any, args: Any, kwargs: Any) -> None:
    for group, value in zip(optimizer.param_groups, own, strict=False):
        group[key] = value
    own.clear()
