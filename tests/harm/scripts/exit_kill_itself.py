# ruff: noqa
# exit: -9
"""The script kills itself with signal 9 in step 40. Compared: exit code, what it printed."""

import os, signal, torch
from _result import fit, net, result, sgd

model = net()
opt = sgd(model)
loss = fit(model, opt, 40)
result(loss, model)
model.register_forward_hook(lambda *a: os.kill(os.getpid(), signal.SIGKILL))
fit(model, opt)
