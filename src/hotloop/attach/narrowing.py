"""The patch of nn.Module.__call__, narrowed to the classes of outermost modules once they are known.

A patch on nn.Module itself costs about half a microsecond for every nested module. After the first rows the classes of
the outermost modules are known; a patch on those classes alone sees the same events. Nested modules (recomputation)
and new outermost classes are looked for again in every WATCH_ROWS'th row, later in ever fewer ones, and at a loader's
first iterators: each switch empties the interpreter's caches of every module's class, and from Python 3.13 on a class
whose methods were replaced a thousand times is never cached again.
Under torch.compile nothing is ever changed: Dynamo guards on what it traced.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from hotloop.observe import wrappers
from hotloop.observe.session import LEARNING_ROWS, MANY_NESTED_CALLS, WATCH_ROWS, Session

WATCH_SHARE = 8
"""Later the next row to watch lies this part of the rows so far ahead."""


class ModulePatch:
    """Switches between the wide patch (nn.Module) and the narrow one (the outermost classes)."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._module = torch.nn.Module
        self._wide = torch.nn.Module.__dict__["__call__"]
        self._original = getattr(self._wide, "__wrapped__", None)
        self._wrap = wrappers.wrap_module_call(session)
        self._narrowed: dict[type, Any] = {}
        self._watch_at = 0
        self.is_wide = True
        self.is_passing = False
        """Whether the wide patch is there for a row or two only."""
        self.widened_count = 0

    def after_row(self, rows: int) -> None:
        """At the end of each row: decide how the next one is watched."""
        session = self._session
        if rows < LEARNING_ROWS or self._original is None:
            self._watch_all(self.is_wide)
            return
        if self.is_wide and session.nested_calls < MANY_NESTED_CALLS * LEARNING_ROWS:
            self._watch_all(True)
            return
        if session.compile_used or _dynamo_compiled():
            if not self.is_wide:
                self.widen()
            self.is_passing = False
            self._watch_all(True)
            return
        if self.is_wide:
            if session.roots and rows % WATCH_ROWS != 0:
                self.narrow()
        elif rows % WATCH_ROWS == 0 and rows >= self._watch_at:
            self._watch_at = rows + rows // WATCH_SHARE
            self.widen()
        self._watch_all(self.is_wide)

    def _watch_all(self, value: bool) -> None:
        if self._session.recorder.watching_all is not value:
            self._session.recorder.watching_all = value

    def narrow(self) -> None:
        """Patch the outermost classes, then give nn.Module its own method back."""
        if self._module.__dict__["__call__"] is not self._wide:
            self.is_passing = False
            return  # somebody patched it after us: leave everything as it is
        for cls in self._session.roots:
            if cls is self._module or cls in self._narrowed:
                continue
            resolved = _call_of(cls)
            self._narrowed[cls] = cls.__dict__.get("__call__")
            _patch(cls, self._wrap(_call_inherited if resolved is self._wide else resolved))
        _patch(self._module, self._original)
        self.is_wide = self.is_passing = False

    def widen(self) -> None:
        """Patch nn.Module again and take the patches off the classes."""
        if self._module.__dict__["__call__"] is self._original:
            _patch(self._module, self._wide)
        for cls, own in self._narrowed.items():
            if own is None:
                delattr(cls, "__call__")
            else:
                _patch(cls, own)
        self._narrowed.clear()
        self.is_wide = self.is_passing = True
        self.widened_count += 1
        self._session.recorder.watching_all = False  # known from the next whole row on


def _call_of(cls: type) -> Any:
    """The function that calling an instance of the class runs."""
    return next(vars(owner)["__call__"] for owner in cls.__mro__ if "__call__" in vars(owner))


def _patch(cls: type, call: Any) -> None:
    setattr(cls, "__call__", call)  # noqa: B010 (a method of a class that is not ours)


def _call_inherited(module: Any, *args: Any, **kwargs: Any) -> Any:
    """nn.Module's own call, looked up now: torch.fx and others patch it for a while."""
    return torch.nn.Module.__call__(module, *args, **kwargs)


def _dynamo_compiled() -> bool:
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters.get("frames"))
