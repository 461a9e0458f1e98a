"""Started by every Python under ``hotloop run`` (this folder is first on PYTHONPATH): attach, then get out of the way.

HOTLOOP_ATTACH is a JSON object with the run folder and the options; it is read once torch is imported.
Leaves sys.path as it would be without hotloop and runs the sitecustomize that this file hides, if there is one.
Valid in every Python that inherits the environment: those before 3.11 are left as they are.
"""

import os
import sys


def _attach():  # type: () -> None
    specification = os.environ.get("HOTLOOP_ATTACH")
    if not specification or sys.version_info < (3, 11):
        return
    from importlib.util import module_from_spec, spec_from_file_location

    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bootstrap.py")
    spec = spec_from_file_location("_hotloop_bootstrap", path)
    if spec is None or spec.loader is None:
        raise ImportError("cannot load " + path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.attach(specification)


def _is_hiding():  # type: () -> bool
    try:
        from importlib.machinery import PathFinder

        return PathFinder.find_spec("sitecustomize") is not None
    except (AttributeError, ImportError):  # a Python before 3.4
        import imp

        try:
            imp.find_module("sitecustomize")
        except ImportError:
            return False
        return True


def _run_hidden_sitecustomize():  # type: () -> None
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here or not p]
    if not _is_hiding():
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
    os.environ["HOTLOOP_ATTACH_ERROR"] = type(error).__name__ + ": " + str(error)
_run_hidden_sitecustomize()
