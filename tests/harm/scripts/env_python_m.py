# ruff: noqa
# command: env PYTHONPATH={folder} {python} -m env_python_m one two
"""The training is started as a module, with a PYTHONPATH of its own and arguments. Compared: sys.argv, __spec__, the first entry
of sys.path, loss bits."""

import os, sys, torch
from _result import fit, net, result, sgd

if __name__ == "__main__":
    model = net()
    loss = fit(model, sgd(model))
    here = os.path.dirname(os.path.abspath(__file__))
    result(loss, model, argv=sys.argv[1:], spec=__spec__.name, first=sys.path[0] == os.getcwd(), own=here in sys.path)
