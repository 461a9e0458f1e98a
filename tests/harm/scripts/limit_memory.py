# ruff: noqa
"""The address space is limited to what is used after warm-up and 48 MB; the script takes 32 MB of them. Compared: exit
code, that it gets them."""

import resource, torch
from _result import _status, fit, net, result, sgd

model = net()
opt = sgd(model)
fit(model, opt, 30)
size = int(_status()["VmSize"].split()[0]) << 10
resource.setrlimit(resource.RLIMIT_AS, (size + (48 << 20), size + (48 << 20)))
held = torch.ones(8 << 20)
loss = fit(model, opt, 1500)
try:
    torch.ones(64 << 20)
    refused = False
except RuntimeError:
    refused = True
result(loss, model, held=int(held.sum()), refused=refused)
