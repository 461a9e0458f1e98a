# ruff: noqa
"""Somebody cuts or removes every file below the working directory in mid-training. Compared: exit code, loss bits."""

import os, torch
from _result import fit, net, result, sgd

model = net()
opt = sgd(model)
fit(model, opt, 300)
for folder, _, names in os.walk("."):
    for n, name in enumerate(names):
        try:
            os.truncate(os.path.join(folder, name), 0)
            if n % 2:
                os.remove(os.path.join(folder, name))
        except OSError:
            pass
loss = fit(model, opt, 1500)
result(loss, model)
