# ruff: noqa
"""After its warm-up the script allows itself five more descriptors and opens them. Compared: how many it gets, that the
training goes on while none is left."""

import os, resource, torch
from torch.utils.data import DataLoader
from _result import descriptors, fit, net, one_step, result, sgd

model = net()
opt = sgd(model)
fit(model, opt, 20)
highest = max(int(n) for n in os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
opened = []
try:
    while True:
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    reason = error.errno
loss = fit(model, opt, 300)
for x in DataLoader(torch.randn(80, 16), batch_size=8):
    loss = one_step(model, opt, x)
for fd in opened:
    os.close(fd)
result(loss, model, opened=opened, reason=reason)
