"""The patch of ``forward`` of model classes that are called past ``__call__``; undone before torch.jit.script.

Scripting reads a method's source and resolves its names where the method was defined, which a wrapper is not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hotloop.observe import wrappers
from hotloop.observe.direct_forward import own_forward
from hotloop.observe.session import Session

from .sites import Site, install

SCRIPT = Site(id="jit-script", module="torch.jit._script", path="script", aliases=(("torch.jit", "script"),))


class ForwardPatches:
    """Patches classes one by one. None is patched once torch.compile or torch.jit.script was used."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._wrap = wrappers.wrap_module_call(session)
        self._patched: dict[type, Any] = {}
        self._is_over = False

    def patch(self, cls: type) -> None:
        """Time the class's forward as a call of the module."""
        forward = own_forward(cls)
        if forward is None or self._is_over or self._session.compile_used:
            return
        owner = next(c for c in cls.__mro__ if "forward" in c.__dict__)
        if owner in self._patched:
            return
        if not self._patched:
            install(SCRIPT, (self._undo_before,))
        self._patched[owner] = (forward, self._wrap(forward))
        type.__setattr__(owner, "forward", self._patched[owner][1])

    def undo(self) -> None:
        """Give every class its own forward back, for good."""
        self._is_over = True
        for owner, (forward, replacement) in self._patched.items():
            if owner.__dict__.get("forward") is replacement:
                type.__setattr__(owner, "forward", forward)

    def _undo_before(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def script(*args: Any, **kwargs: Any) -> Any:
            self.undo()
            return original(*args, **kwargs)

        return script
