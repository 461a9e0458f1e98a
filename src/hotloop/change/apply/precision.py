"""A model and a dtype -> its forward under autocast, or the reason why the script's own precision stays."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from hotloop.change.apply.forward import wrap_forward
from hotloop.change.apply.forward_fallback import on_trial
from hotloop.change.apply.modules import find_replication
from hotloop.change.apply.own_backward import find_mixed_backward

MOST_LAYERS = 8
"""This many wrappers of one forward are looked through."""


def why_not_autocast(model: Any, device_type: str | None) -> str | None:
    """Why this model must not be put under autocast; None when nothing speaks against it.

    ``device_type`` is the one that the strategy names, if it does.
    """
    parameters = [p for p in model.parameters() if p.is_floating_point()]
    if not parameters:
        return "the model has no floating-point parameters"
    other = next((p.dtype for p in parameters if p.dtype != torch.float32), None)
    if other is not None:
        return f"the model has parameters of {other}"
    devices = sorted({p.device.type for p in parameters})
    if len(devices) > 1:
        return f"the parameters are on {' and '.join(devices)}"
    if device_type is not None and device_type != devices[0]:
        return f"the model is on {devices[0]}, but the strategy sets device_type {device_type}"
    if autocast_depth() or torch.is_autocast_enabled(devices[0]):
        return "the script already uses autocast around the model"
    own = find_own_autocast(model)
    if own is not None:
        return f"{own} already uses autocast in its forward"
    policy = _sharded_policy(model)
    if policy is not None:
        return f"the script sets FSDP's mixed precision ({policy})"
    return find_replication(model)


def device_of(model: Any) -> str:
    """The device type of the first floating-point parameter."""
    return str(next(p for p in model.parameters() if p.is_floating_point()).device.type)


def autocast_forward(
    model: Any,
    dtype: Any,
    give_up: Callable[[str], None],
    *,
    evaluation: bool = True,
) -> Callable[[], None]:
    """Run ``model.forward`` under autocast of ``dtype``, with outputs in float32; returns a function that undoes it.

    ``give_up(why)`` is called when a forward fails under it that succeeds without: from then on it is left alone.
    ``evaluation`` False leaves forwards without gradients as they were.
    """
    device = device_of(model)
    is_checked = False

    def check(result: Any) -> None:
        """Once: an error inside backward would come too late to go back."""
        nonlocal is_checked
        if not is_checked and torch.is_grad_enabled():
            is_checked = True
            mixed = find_mixed_backward(result)
            if mixed is not None:
                raise TypeError(mixed)

    def around(call: Any, args: Any, kwargs: Any) -> Any:
        if not evaluation and not torch.is_grad_enabled():
            return call(*args, **kwargs)
        if _is_taken(device):
            return call(*args, **kwargs)
        with torch.autocast(device, dtype=dtype):
            result = to_float32(call(*args, **kwargs))
        if not torch.compiler.is_compiling():
            check(result)
        return result

    return wrap_forward(model, on_trial(model, around, give_up))


def autocast_part(part: Any, device: str, dtype: Any, give_up: Callable[[str], None]) -> Callable[[], None]:
    """Run a part of a model under autocast where it is called outside of every autocast; returns a function to undo it.

    For weights that were cast for good: a script may call a part by itself, past the model's forward.
    """

    def under_autocast(call: Any, args: Any, kwargs: Any) -> Any:
        with torch.autocast(device, dtype=dtype):
            return to_float32(call(*args, **kwargs))

    tried = on_trial(part, under_autocast, give_up)

    def around(call: Any, args: Any, kwargs: Any) -> Any:
        is_inside = torch.is_autocast_enabled(device) if torch.compiler.is_compiling() else autocast_depth() > 0
        return call(*args, **kwargs) if is_inside else tried(call, args, kwargs)

    return wrap_forward(part, around)


def _is_taken(device: str) -> bool:
    """Whether this forward belongs to somebody else: an autocast of the script, an outer module of ours, an export."""
    if torch.compiler.is_compiling():
        return bool(torch.compiler.is_exporting() or torch.is_autocast_enabled(device))
    return autocast_depth() > 0 or torch._C._get_tracing_state() is not None


def autocast_depth() -> int:
    """How many autocast regions this thread is in, those with enabled=False included."""
    depth = int(torch.autocast_increment_nesting()) - 1
    torch.autocast_decrement_nesting()
    return depth


def to_float32(value: Any) -> Any:
    """The same nested value with its bfloat16 and float16 tensors in float32."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if isinstance(value, dict):
        changed = {key: to_float32(one) for key, one in value.items()}
        if type(value) is dict:
            return changed
        for key, one in changed.items():  # model outputs of Hugging Face are dictionaries with attributes
            if one is not value[key]:
                value[key] = one
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_float32(one) for one in value))
    if type(value) in (list, tuple):
        return type(value)(to_float32(one) for one in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
        changed = {name: to_float32(one) for name, one in fields.items()}
        if all(changed[name] is fields[name] for name in fields):
            return value
        made = copy.copy(value)
        for name, one in changed.items():
            object.__setattr__(made, name, one)  # frozen ones too
        return made
    return value


def find_own_autocast(model: Any) -> str | None:
    """The class whose own forward switches autocast on, as far as its source shows; None when there is none."""
    seen: set[Any] = set()
    for module in model.modules():
        cls = type(module)
        own = vars(module).get("forward")
        if own is not None and any(_enters_autocast(one) for one in _layers(own)):
            return cls.__name__
        if cls in seen or cls.__module__.split(".")[0] == "torch":
            continue
        seen.add(cls)
        for function in _own_functions(cls):
            if _enters_autocast(function):
                return cls.__name__
    return None


def _own_functions(cls: type) -> Iterator[Any]:
    """``forward`` and the methods of the class that it names."""
    for layer in _layers(cls.forward):  # type: ignore[attr-defined]
        yield layer
        code = getattr(layer, "__code__", None)
        for name in getattr(code, "co_names", ()):
            method = inspect.getattr_static(cls, name, None)
            if isinstance(method, FunctionType) and method.__module__.split(".")[0] != "torch":
                yield from _layers(method)


def _layers(function: Any) -> Iterator[Any]:
    """A callable and what it wraps, by the names that Python's and torch's wrappers use."""
    for _ in range(MOST_LAYERS):
        if function is None:
            return
        function = getattr(function, "__func__", function)
        yield function
        function = getattr(function, "__wrapped__", None)


def _enters_autocast(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return False
    if code.co_name == "decorate_autocast":  # what @torch.autocast(...) makes of a function
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        return not any(getattr(one, "_enabled", True) is False for one in cells)
    if not any(_names_autocast(name) for name in code.co_names):
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, ValueError):
        return True  # unknown: the script's own precision stays
    return any(isinstance(node, ast.Call) and _switches_on(node) for node in ast.walk(tree))


def _names_autocast(name: str) -> bool:
    return name == "autocast" or name.endswith("_autocast")


def _switches_on(call: ast.Call) -> bool:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if not _names_autocast(name):
        return False
    given = [keyword.value for keyword in call.keywords if keyword.arg == "enabled"] or call.args[:1]
    return not any(isinstance(one, ast.Constant) and one.value is False for one in given)


def _sharded_policy(model: Any) -> str | None:
    """The parameter dtype that FSDP casts to, in either of its generations."""
    for module in model.modules():
        policy = getattr(module, "mixed_precision", None)
        state = getattr(module, "_get_fsdp_state", None)
        if policy is None and callable(state):
            policy = getattr(state(), "_mp_policy", None)
        dtype = getattr(policy, "param_dtype", None)
        if dtype is not None:
            return str(dtype)
    return None
