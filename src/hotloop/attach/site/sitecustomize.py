"""Started by every Python under ``hotloop run`` (this folder is first on PYTHONPATH): attach, then get out of the way.

Reads HOTLOOP_ATTACH, a JSON object that holds the folder of hotloop's source, the run folder and the options.
Leaves sys.path as it would be without hotloop and runs the sitecustomize that this file hides, if there is one.
"""

import os
import sys


def _attach() -> None:
    specification = os.environ.get("HOTLOOP_ATTACH")
    if not specification:
        return
    import json
    from importlib.util import module_from_spec, spec_from_file_location

    options = json.loads(specification)
    path = os.path.join(options["source"], "attach", "bootstrap.py")
    spec = spec_from_file_location("_hotloop_bootstrap", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.attach(options)


def _run_hidden_sitecustomize() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here or not p]
    from importlib.machinery import PathFinder

    if PathFinder.find_spec("sitecustomize") is None:
        return
    ours = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


try:
    _attach()
except Exception as error:
    # A training must start whatever becomes of us; the parent says that nothing was recorded, and this is why.
    os.environ["HOTLOOP_ATTACH_ERROR"] = f"{type(error).__name__}: {error}"
_run_hidden_sitecustomize()
