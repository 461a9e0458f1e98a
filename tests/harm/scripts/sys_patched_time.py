# ruff: noqa
"""All clocks of time and datetime are replaced by functions that raise or stand still, as freezegun does, in the middle of
the training. Compared: exit code, loss bits, how often they were called."""

import datetime, time, torch
from _result import fit, net, result, sgd
from torch.utils.data import DataLoader

called = 0


def refuse(*args, **kwargs):
    global called
    called += 1
    raise RuntimeError("no clock")


model = net()
opt = sgd(model)
fit(model, opt, 20)
names = [
    n
    for n in dir(time)
    if n.startswith(
        ("time", "perf_counter", "monotonic", "process_time", "thread_time", "clock_g", "sleep", "strf", "local")
    )
]
kept = {n: getattr(time, n) for n in names if callable(getattr(time, n))}
for n in kept:
    setattr(time, n, refuse)
loss = fit(model, opt, 200)
for x in DataLoader(torch.randn(80, 16), batch_size=8):
    model(x).sum().backward()
model = net()
loss = fit(model, sgd(model), 30)
for n, f in kept.items():
    setattr(time, n, f)
result(loss, model, called=called)
