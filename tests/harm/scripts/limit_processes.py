# ruff: noqa
"""RLIMIT_NPROC and RLIMIT_MEMLOCK are zero and RLIMIT_CORE too, set before torch is imported. Compared: exit code."""

import resource

for kind in (resource.RLIMIT_NPROC, resource.RLIMIT_MEMLOCK, resource.RLIMIT_CORE):
    resource.setrlimit(kind, (0, 0))
import torch
from _result import fit, net, result, sgd

model = net()
opt = sgd(model)
loss = fit(model, opt, 200)
result(loss, model)
