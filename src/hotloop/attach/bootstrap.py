"""Options from the environment -> an agent that arms when torch has been imported.

This file is loaded by path, before hotloop can be imported, in every Python that the training starts; it must stay
small, import nothing heavy and leave processes that never import torch untouched.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Any

_MARK = "_hotloop_attached"


class SourceFinder:
    """Makes ``import hotloop`` find the hotloop that started this run, in a Python where it is not installed."""

    def __init__(self, source: str) -> None:
        self._source = source

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "hotloop":
            return None
        return spec_from_file_location(
            "hotloop", os.path.join(self._source, "__init__.py"), submodule_search_locations=[self._source]
        )


class TorchFinder:
    """Calls ``then`` once when the import of torch is complete; until then every other import pays one comparison."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._busy = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch" or self._busy:
            return None
        from importlib.util import find_spec

        self._busy = True
        try:
            spec = find_spec(name)
        finally:
            self._busy = False
        if spec is None or spec.loader is None:
            return None
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # The loader is a fresh object: give it back as it was, then import, then arm.
            del loader.exec_module
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            execute(module)
            arm(self._options)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def arm(options: dict[str, Any]) -> None:
    """Patch torch; torch has been imported. A failure is recorded and never raised."""
    try:
        from hotloop.attach.agent import arm_agent

        arm_agent(options)
    except Exception as error:
        _tell(options, f"{type(error).__name__}: {error}")


def _tell(options: dict[str, Any], failure: str) -> None:
    """Say to hotloop's own process that nothing of this one is recorded, and why."""
    import _socket

    try:
        link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK, 0)
        link.connect("\0" + options["address"])
        link.send(f"{options['token']}\n{failure}".encode()[:2000])
        link.close()
    except Exception:
        os.environ["HOTLOOP_ATTACH_ERROR"] = failure  # nobody listens: it can only be looked up


def attach_from_environment() -> None:
    """For the .pth file: attach as HOTLOOP_ATTACH says, and never fail an interpreter's start."""
    options: dict[str, Any] = {}
    try:
        options = json.loads(os.environ["HOTLOOP_ATTACH"])
        attach(options)
    except Exception as error:
        _tell(options, f"{type(error).__name__}: {error}")


def attach(options: dict[str, Any]) -> None:
    """Wait for torch. Calling it twice in one process changes nothing, also through two copies of this file."""
    if getattr(sys, _MARK, False):
        return
    setattr(sys, _MARK, True)
    if hasattr(os, "sched_getaffinity"):
        # Read before torch is imported: with OMP_PROC_BIND its threads narrow the main thread's affinity to one core.
        options["affinity_cores"] = len(os.sched_getaffinity(0))
    sys.meta_path.insert(0, SourceFinder(options["source"]))
    if "torch" in sys.modules:
        arm(options)
    else:
        sys.meta_path.insert(0, TorchFinder(options))
