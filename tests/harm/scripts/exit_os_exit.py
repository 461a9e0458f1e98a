# ruff: noqa
# exit: 5
"""os._exit(5) in the middle of a step. Compared: exit code; nothing of the script is lost or added."""

import os, torch
from _result import fit, net, result, sgd

model = net()
opt = sgd(model)
loss = fit(model, opt, 40)
result(loss, model)
model(torch.ones(1, 16)).register_hook(lambda g: os._exit(5))
out = model(torch.ones(1, 16))
out.register_hook(lambda g: os._exit(5))
out.sum().backward()
