"""Frames of a running training -> classes of models whose forward is called past ``__call__`` (``self.forward(x)``)."""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType, FunctionType
from typing import Any

import torch

from .places import is_user_code

MOST_FRAMES = 40
MOST_NAMES = 200


def find_running_forward(frame: FrameType | None) -> type | None:
    """The class of the outermost module whose ``forward`` runs in one of the frames.

    Asked when a module was called that no other module's call surrounds: whatever forward surrounds it was not called
    through its module.
    """
    found: type | None = None
    for current in _frames(frame):
        code = current.f_code
        if code.co_name != "forward" or not code.co_argcount:
            continue
        module = current.f_locals.get(code.co_varnames[0])
        if isinstance(module, torch.nn.Module):
            forward = own_forward(type(module))
            if forward is not None and getattr(forward, "__code__", None) is code:
                found = type(module)
    return found


def find_models_in_sight(frame: FrameType | None) -> set[type]:
    """Classes of the modules with parameters that the user's frames hold: as a local or global name, or an attribute
    of an object that runs.

    Asked when a backward begins and no module with parameters was called yet.
    """
    found: set[type] = set()
    for current in _frames(frame):
        if not is_user_code(current.f_code):
            continue
        names = current.f_locals
        values = list(names.values())[:MOST_NAMES]
        if current.f_globals is not names:
            values += [current.f_globals[n] for n in current.f_code.co_names if n in current.f_globals][:MOST_NAMES]
        first = names.get(current.f_code.co_varnames[0]) if current.f_code.co_argcount else None
        if first is not None:
            values += list(getattr(first, "__dict__", {}).values())[:MOST_NAMES]
        found |= _learning_classes(values)
    return found


def own_forward(cls: type) -> FunctionType | None:
    """The plain function that is the class's forward, unless it is torch's own."""
    for owner in cls.__mro__:
        forward = owner.__dict__.get("forward")
        if forward is not None:
            is_foreign = not owner.__module__.startswith("torch.")
            return forward if isinstance(forward, FunctionType) and is_foreign else None
    return None


def _learning_classes(values: Iterable[Any]) -> set[type]:
    return {
        type(value)
        for value in values
        if isinstance(value, torch.nn.Module)
        and own_forward(type(value)) is not None
        and next(value.parameters(), None) is not None
    }


def _frames(frame: FrameType | None) -> Iterable[FrameType]:
    for _ in range(MOST_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back
