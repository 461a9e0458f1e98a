"""A module -> the same module whose forward runs inside something, without a trace in its class, state or pickles."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Around = Callable[[Callable[..., Any], Any, Any], Any]
"""``around(call, args, kwargs)`` calls ``call(*args, **kwargs)`` inside whatever it adds."""


def wrap_forward(model: Any, around: Around) -> Callable[[], None]:
    """Run ``model.forward`` inside ``around``; answers what takes it back.

    The wrapper is an attribute of this one object. A copy or a pickle of the module does not carry it: it pickles as
    the forward that it wraps (a plain method again when it is loaded).
    """
    inner = model.forward
    had_own = "forward" in vars(model)

    wrapper = _Forward(inner, around)
    object.__setattr__(model, "forward", wrapper)

    def undo() -> None:
        if vars(model).get("forward") is wrapper:
            if had_own:
                object.__setattr__(model, "forward", inner)
            else:
                object.__delattr__(model, "forward")

    return undo


class _Forward:
    """A bound forward inside ``around``. torch.compile traces through ``__call__``."""

    def __init__(self, inner: Callable[..., Any], around: Around) -> None:
        functools.update_wrapper(self, inner)
        self.inner = inner
        self.around = around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.around(self.inner, args, kwargs)

    def __reduce__(self) -> Any:
        inner: Any = self.inner
        while isinstance(inner, _Forward):
            inner = inner.inner
        owner = getattr(inner, "__self__", None)
        if owner is not None:
            return (getattr, (owner, "forward"))
        # Builtins only: whoever loads the pickle need not have hotloop.
        return (getattr, (SimpleNamespace(forward=inner), "forward"))
