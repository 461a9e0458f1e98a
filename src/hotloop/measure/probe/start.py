"""Starts a program of this package: ``python start.py PROGRAM IN.json OUT.json``, in any Python that has torch.

hotloop need not be installed there. Its package is found from this file's location, and nothing next to the package
(hotloop's own dependencies) comes onto the path.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location

if __name__ == "__main__":
    own = os.path.dirname(os.path.abspath(__file__))
    source = os.path.dirname(os.path.dirname(own))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != own]
    if find_spec("torch") is None:
        raise SystemExit(f"hotloop: {sys.executable} has no torch; activate its environment, or give --python FILE")
    spec = spec_from_file_location("hotloop", os.path.join(source, "__init__.py"), submodule_search_locations=[source])
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load hotloop from {source}")
    sys.modules["hotloop"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["hotloop"])
    sys.exit(import_module("hotloop.measure.probe.programs").main(*sys.argv[1:]))
