# ruff: noqa
"""RLIMIT_FSIZE is zero, and SIGXFSZ has its default action, which ends the process: nobody may write a file for it.
Compared: exit code, loss bits."""

import resource, signal, torch
from torch.utils.data import DataLoader
from _result import fit, net, one_step, result, sgd

model = net()
opt = sgd(model)
fit(model, opt, 20)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
loss = fit(model, opt, 1000)
for x in DataLoader(torch.randn(80, 16), batch_size=8):
    loss = one_step(model, opt, x)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
result(loss, model)
