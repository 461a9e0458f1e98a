"""An optimizer of torch -> the same one in its fused or foreach form; its checkpoints stay as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FORM_KEYS = ("fused", "foreach")
"""Keys of a parameter group that say which implementation steps; they say nothing about the result."""


def find_own_step(optimizer: Any) -> str | None:
    """Why another form cannot be chosen for it: torch's flags do not change what a subclass computes itself."""
    for name in ("step", "_init_group"):
        owner = next((cls for cls in type(optimizer).__mro__ if name in vars(cls)), None)
        if owner is None or not owner.__module__.startswith("torch.optim."):
            known = "of an unknown class" if owner is None else f"{owner.__module__}.{owner.__name__}"
            return f"{type(optimizer).__name__} overrides {name} ({known})"
    return None


def find_hindrance(optimizer: Any, form: str) -> str | None:
    """Why ``form`` ('fused' or 'foreach') cannot be switched on, whatever a strategy says; None when it can.

    ``find_choice`` names what a strategy may replace. ``capturable`` and ``differentiable`` stay, which change more
    than speed.
    """
    if form not in optimizer.defaults:
        return f"{type(optimizer).__name__} has no {form} form"
    own = find_own_step(optimizer)
    if own is not None:
        return own
    for group in optimizer.param_groups:
        for key in ("capturable", "differentiable"):
            if group.get(key):
                return f"the script sets {key}=True"
        for key in dict.fromkeys(("fused", form)):
            if group.get(key):
                return f"the script sets {key}=True"
        for key, value in group.items():
            if key != "lr" and key != "params" and _holds_tensor(value):
                return f"{key} is a tensor, which the {form} form does not accept"
    for parameter in _parameters(optimizer):
        if parameter.grad is not None and parameter.grad.is_sparse:
            return "a parameter has sparse gradients"
    return None


def find_choice(optimizer: Any) -> str | None:
    """The form that the script chose, as source: 'foreach=False'; None where it left the choice to torch."""
    chosen = {
        f"{key}={group[key]}" for group in optimizer.param_groups for key in FORM_KEYS if group.get(key) is not None
    }
    return " and ".join(sorted(chosen)) or None


def switch_form(optimizer: Any, form: str) -> Callable[[], None]:
    """Switch ``form`` on; returns a function that undoes it. ``find_hindrance`` must have returned None before.

    ``state_dict()`` keeps showing the script's own flags, with step counts where they would be without this: a
    checkpoint loads the same with and without hotloop. ``load_state_dict`` brings those flags back, so the form is
    switched on again after it. It also keeps the order in memory that the state was saved in, by which the fused kernel
    would put it to other elements of the weight.

    A GradScaler does not know of it: the gradients are divided by its scale before the step, and the step is left out
    where they are infinite, as in the script's own form, which is what the script and its library count on.
    """
    flags = {key: key == form for key in FORM_KEYS}
    before = [{key: group[key] for key in FORM_KEYS if key in group} for group in optimizer.param_groups]
    defaults = {key: optimizer.defaults[key] for key in FORM_KEYS if key in optimizer.defaults}

    def put() -> None:
        for group in optimizer.param_groups:
            group.update({key: value for key, value in flags.items() if key in defaults})
        optimizer.defaults.update({key: value for key, value in flags.items() if key in defaults})
        _place_step_counts(optimizer, form)
        if form == "fused":
            _order_state(optimizer)

    def show(_: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        groups = [
            {**group, **(before[i] if i < len(before) else defaults)}
            for i, group in enumerate(state_dict["param_groups"])
        ]
        state = {key: _with_step_on_host(value) for key, value in state_dict["state"].items()}
        return {**state_dict, "param_groups": groups, "state": state}

    put()
    saved = optimizer.register_state_dict_post_hook(show)
    loaded = optimizer.register_load_state_dict_post_hook(lambda _: put())

    def undo() -> None:
        saved.remove()
        loaded.remove()
        for i, group in enumerate(optimizer.param_groups):
            group.update(before[i] if i < len(before) else defaults)
        optimizer.defaults.update(defaults)
        _place_step_counts(optimizer, None)

    return undo


def watch_gradients(optimizer: Any, give_up: Callable[[str], None]) -> Callable[[], None]:
    """Let the fused SGD and Adagrad step wherever the script's own form does; returns a function that undoes it.

    Their kernels take no sparse gradients, and that of SGD takes either no momentum or the momentum of all parameters:
    one whose first gradient comes late gets a momentum of zeros. ``give_up(why)`` is called within the step, before it
    reads which form it is to take, where that is not the same formula.
    """
    plain = optimizer._init_group

    def init_group(group: dict[str, Any], parameters: list[Any], *lists: list[Any]) -> Any:
        found = plain(group, parameters, *lists)
        has_sparse = found[0] if isinstance(found, tuple) else found
        why = "a parameter has sparse gradients" if has_sparse else None
        if why is None and "dampening" in group:
            why = _complete_momentum(optimizer, group, parameters, lists[1])
        if why is not None:
            give_up(why)
        return found

    optimizer._init_group = init_group

    def undo() -> None:
        if vars(optimizer).get("_init_group") is init_group:
            del optimizer._init_group

    return undo


def _complete_momentum(optimizer: Any, group: dict[str, Any], parameters: list[Any], momenta: list[Any]) -> str | None:
    """Zeros in place of what is missing; why they would not be the same formula, else None."""
    import torch

    missing = [i for i, momentum in enumerate(momenta) if momentum is None]
    if missing and group["dampening"]:  # a parameter's first gradient is not dampened, a gradient added to zeros is
        return (
            None
            if len(missing) == len(momenta)
            else ("dampening is set, and a parameter got its first gradient later than the others")
        )
    for i in missing:
        momenta[i] = optimizer.state[parameters[i]]["momentum_buffer"] = torch.zeros_like(parameters[i])
    return None


def _order_state(optimizer: Any) -> None:
    """Fused kernels walk a weight, its gradient and its state by position in memory: state gets the weight's order."""
    import torch

    for parameter in _parameters(optimizer):
        state = optimizer.state.get(parameter) or {}
        for key, value in list(state.items()):
            is_like = type(value) is torch.Tensor and value.shape == parameter.shape
            if is_like and value.stride() != parameter.stride():
                # A new tensor: the old one may still be part of the checkpoint that the script has loaded.
                state[key] = torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)


def _place_step_counts(optimizer: Any, form: str | None) -> None:
    """The fused kernel reads the count where the parameter lives, the other forms on the host."""
    import torch

    for parameter in _parameters(optimizer):
        state = optimizer.state.get(parameter)
        step = None if state is None else state.get("step")
        if step is not None:
            device = parameter.device if form == "fused" else "cpu"
            state["step"] = torch.as_tensor(step, dtype=torch.float32).to(device)


def _with_step_on_host(state: Any) -> Any:
    import torch

    if isinstance(state, dict) and isinstance(state.get("step"), torch.Tensor):
        return {**state, "step": state["step"].cpu()}
    return state


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _holds_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) or (
        isinstance(value, (list, tuple)) and any(isinstance(one, torch.Tensor) for one in value)
    )
