# ruff: noqa
"""20,000 tiny steps. Compared: by how much memory grows between step 2,000 and the last, CPU time."""

import time, torch
from _result import result, rss_mb

model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(4, 4)


def run(steps):
    for _ in range(steps):
        loss = model(x).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    return loss


run(2000)
before, start = rss_mb(), time.thread_time()
loss = run(18_000)
result(loss, model, grown_mb=rss_mb() - before, loop_cpu_s=time.thread_time() - start)
