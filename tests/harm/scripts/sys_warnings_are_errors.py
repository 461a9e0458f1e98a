# ruff: noqa
# command: {python} -W error {script}
"""Run with -W error: every warning is an exception. Compared: exit code, loss bits, the filters."""

import sys, warnings, torch
from torch.utils.data import DataLoader
from _result import net, one_step, result, sgd

model = net()
opt, caught = sgd(model), 0
scheduler = torch.optim.lr_scheduler.StepLR(opt, 10)
for epoch in range(3):
    for x in DataLoader(torch.randn(80, 16), batch_size=8):
        loss = one_step(model, opt, x)
        scheduler.step()
    try:
        warnings.warn("an error here", DeprecationWarning)
    except DeprecationWarning:
        caught += 1
result(loss, model, caught=caught, filters=len(warnings.filters), options=sys.warnoptions)
