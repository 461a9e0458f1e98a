# ruff: noqa
# exit: -6
"""os.abort in forward, with faulthandler on. Compared: exit code (a signal), that nothing else comes first."""

import faulthandler, os, torch
from _result import fit, net, result, sgd

faulthandler.enable()
model = net()
opt = sgd(model)
loss = fit(model, opt, 40)
result(loss, model)
model.register_forward_hook(lambda *a: os.abort())
fit(model, opt)
