# ruff: noqa
"""An audit hook counts events in 60 steps, after ten of warm-up, by name. Compared: the counts."""

import collections, sys, torch
from torch.utils.data import DataLoader
from _result import net, one_step, result, sgd

counts, on = collections.Counter(), False


def audit(event, args):
    if on:
        counts[event] += 1


sys.addaudithook(audit)
model = net()
opt = sgd(model)
loader = DataLoader(torch.randn(80, 16), batch_size=8)
for epoch in range(7):
    for x in loader:
        loss = one_step(model, opt, x)
    on = True
on = False
told = {name.replace(".", "_"): n for name, n in sorted(counts.items())}
result(loss, model, events=sum(counts.values()), **told)
