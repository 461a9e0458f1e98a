# ruff: noqa
"""The three interval timers run while the script trains, with handlers that count; nobody else sets, stops or takes them.
Compared: that they still run, that the intervals are the script's, errors from interrupted calls."""

import collections, signal, time, torch
from torch.utils.data import DataLoader
from _result import net, one_step, result, sgd

rang = collections.Counter()
kinds = {
    signal.SIGALRM: signal.ITIMER_REAL,
    signal.SIGVTALRM: signal.ITIMER_VIRTUAL,
    signal.SIGPROF: signal.ITIMER_PROF,
}
for number, timer in kinds.items():
    signal.signal(number, lambda n, f: rang.update([int(n)]))
    signal.setitimer(timer, 0.003, 0.003)
model = net()
opt = sgd(model)
for epoch in range(60):
    for x in DataLoader(torch.randn(64, 16), batch_size=8):
        loss = one_step(model, opt, x)
time.sleep(0.05)
left = [signal.getitimer(timer)[1] for timer in kinds.values()]
for timer in kinds.values():
    signal.setitimer(timer, 0)
result(loss, model, rang=[rang[n] > 3 for n in kinds], left=left)
