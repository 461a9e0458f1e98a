"""Options from the environment -> an agent that arms when torch has been imported.

This file is loaded by path, before hotloop can be imported, in every Python that the training starts; it must stay
small, import nothing heavy and leave processes that never import torch untouched.
"""

from __future__ import annotations

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

    def __init__(self, specification: str, cores: int | None) -> None:
        self._specification, self._cores = specification, cores
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
            arm(self._specification, self._cores)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def arm(specification: str, cores: int | None) -> None:
    """Patch torch; torch has been imported. A failure is recorded and never raised."""
    import json

    options: dict[str, Any] = {}
    try:
        options = json.loads(specification)
        if cores is not None:
            options["affinity_cores"] = cores
        from hotloop.agent.attach.agent import arm_agent

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
    """For the .pth file: attach as HOTLOOP_ATTACH says, and never fail an interpreter's start.

    Until torch is imported, ``sys.modules`` is as without hotloop.
    """
    try:
        attach(os.environ["HOTLOOP_ATTACH"])
    except Exception as error:
        _tell({}, f"{type(error).__name__}: {error}")
    if "torch" not in sys.modules:
        for name in ("hotloop", "hotloop.agent", "hotloop.agent.attach", __name__):
            sys.modules.pop(name, None)


def attach(specification: str) -> None:
    """Wait for torch. Calling it twice in one process changes nothing, also through two copies of this file."""
    if getattr(sys, _MARK, False):
        return
    setattr(sys, _MARK, True)
    # Read before torch is imported: with OMP_PROC_BIND its threads narrow the main thread's affinity to one core.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    sys.meta_path.insert(0, SourceFinder(os.path.abspath(os.path.join(__file__, "..", "..", ".."))))
    if "torch" in sys.modules:
        arm(specification, cores)
    else:
        sys.meta_path.insert(0, TorchFinder(specification, cores))
