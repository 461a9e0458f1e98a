# ruff: noqa
# command: {python} -c "import sys; sys.path.insert(0, '{folder}'); import torch; from _result import *; m = net(); result(fit(m, sgd(m)), m, argv=sys.argv, path0=sys.path[1], main=hasattr(sys.modules['__main__'], '__file__'))"
"""The training is given to python -c. Compared: sys.argv, sys.path, __main__, loss bits."""
