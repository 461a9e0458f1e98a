# ruff: noqa
"""The script locks all its memory, present and future (mlockall), then trains: whatever is mapped is resident. Compared: peak
memory, exit code."""

import ctypes, torch
from _result import _status, fit, net, result, sgd

model = net()
opt = sgd(model)
fit(model, opt, 20)
status = ctypes.CDLL(None).mlockall(3)
loss = fit(model, opt, 200)
result(loss, model, status=status)
