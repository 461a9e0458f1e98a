"""A program of this package and its request as JSON -> its result as JSON; and the user's functions that it calls."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


class BadRequest(Exception):
    """The user's input does not work: the text is for the user."""


def main(program: str, given: str, result: str) -> int:
    """Write what ``measure`` of the module of this name returns for the request."""
    request = json.loads(Path(given).read_text(encoding="utf-8"))
    try:
        answer = import_module(f"hotloop.measure.probe.{program}").measure(request)
    except BadRequest as error:
        answer = {"error": str(error)}
    part = Path(f"{result}.part")
    part.write_text(json.dumps(answer), encoding="utf-8")
    os.replace(part, result)
    return 0


def load_function(file: str, function: str) -> Callable[[], Any]:
    """The function of a file, which is imported once, as a module of its own name and not as __main__."""
    path = Path(file).resolve()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.argv = [file]  # a file that reads its arguments while it is imported finds none, and not this program's
    module: Any = sys.modules.get(path.stem)
    if getattr(module, "__file__", None) != str(path):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise BadRequest(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # workers that unpickle a dataset look for its module here
        spec.loader.exec_module(module)
    found = getattr(module, function, None)
    if not callable(found):
        known = ", ".join(sorted(k for k, v in vars(module).items() if callable(v) and not k.startswith("_"))[:20])
        raise BadRequest(f"{file} has no function {function!r}; it has: {known or 'none'}")
    return found  # type: ignore[no-any-return]
