"""Calls back when a module has been imported, now or later, without changing how it is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class ImportWatch:
    """A finder that finds nothing itself: it lets the others find, and runs callbacks after the module's code."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callable[[], None]]] = {}
        self._busy: set[str] = set()

    def after_import(self, name: str, callback: Callable[[], None]) -> None:
        """Call back once ``name`` is imported; at once when it already is."""
        if name in sys.modules:
            callback()
            return
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self._callbacks.setdefault(name, []).append(callback)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._callbacks or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is None or spec.loader is None:
            return None
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            for callback in self._callbacks.pop(name, []):
                callback()

        try:
            loader.exec_module = exec_module  # type: ignore[method-assign]
        except AttributeError:  # a built-in loader takes no attributes; its module is then not patched
            return None
        return spec
