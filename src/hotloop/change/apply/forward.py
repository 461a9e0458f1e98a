"""A module -> the same module whose forward runs inside something, without a trace in its class, state or pickles."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Around = Callable[[Callable[..., Any], Any, Any], Any]
"""``around(call, args, kwargs)`` calls ``call(*args, **kwargs)`` inside whatever it adds."""


def wrap_forward(model: Any, around: Around) -> Callable[[], None]:
    """Run ``model.forward`` inside ``around``; returns a function that undoes it.

    The wrapper is an attribute of this one object. A copy or a pickle of the module does not carry it: it pickles as
    the forward that it wraps (a plain method again when it is loaded). torch.jit.script compiles that.
    """
    _show_scripting_the_own_forwards()
    inner = model.forward
    had_own = "forward" in vars(model)

    wrapper = _Forward(inner, around, had_own)
    object.__setattr__(model, "forward", wrapper)

    def undo() -> None:
        wrapper.around = _as_it_was  # it stays where another wrapper was put around it since
        if vars(model).get("forward") is wrapper:
            if had_own:
                object.__setattr__(model, "forward", inner)
            else:
                object.__delattr__(model, "forward")

    return undo


def _as_it_was(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return call(*args, **kwargs)


class _Forward:
    """A bound forward inside ``around``. torch.compile traces through ``__call__``.

    ``is_own``: ``inner`` is an attribute of the module itself, not a method of its class.
    """

    def __init__(self, inner: Callable[..., Any], around: Around, is_own: bool) -> None:
        # torch.export reads the code object's name and place.
        functools.update_wrapper(self, inner, (*functools.WRAPPER_ASSIGNMENTS, "__code__"))
        self.inner = inner
        self.around = around
        self.is_own = is_own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.around(self.inner, args, kwargs)

    def innermost(self) -> _Forward:
        """The wrapper of the script's own forward."""
        found = self
        while isinstance(found.inner, _Forward):
            found = found.inner
        return found

    def __reduce__(self) -> Any:
        last = self.innermost()
        owner = getattr(last.inner, "__self__", None)
        if owner is not None and not last.is_own:
            return (getattr, (owner, "forward"))
        # Builtins only: whoever loads the pickle need not have hotloop.
        return (getattr, (SimpleNamespace(forward=last.inner), "forward"))


@functools.cache
def _show_scripting_the_own_forwards() -> None:
    """torch.jit makes its module from the script's own forwards: it reads their source, which a wrapper has not."""
    from torch.jit import _recursive

    create: Any = getattr(_recursive, "create_script_module", None)
    if create is None:
        return

    @functools.wraps(create)
    def create_script_module(nn_module: Any, *args: Any, **kwargs: Any) -> Any:
        put_back = _take_out(nn_module)
        try:
            return create(nn_module, *args, **kwargs)
        finally:
            put_back()

    _recursive.create_script_module = create_script_module


def _take_out(model: Any) -> Callable[[], None]:
    """Give every part of the model its own forward; returns a function that restores the wrappers."""
    found = [(part, vars(part)["forward"]) for part in model.modules() if "forward" in vars(part)]
    wrapped = [(part, wrapper) for part, wrapper in found if isinstance(wrapper, _Forward)]
    for part, wrapper in wrapped:
        last = wrapper.innermost()
        if last.is_own:
            object.__setattr__(part, "forward", last.inner)
        else:
            object.__delattr__(part, "forward")

    def put_back() -> None:
        for part, wrapper in wrapped:
            object.__setattr__(part, "forward", wrapper)

    return put_back
