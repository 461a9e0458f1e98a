# ruff: noqa
"""8,000 tiny steps. Compared: CPU time of the thread in them."""

import time, torch
from _result import result

model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(4, 4)
start = time.thread_time()
for _ in range(8000):
    loss = model(x).mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
result(loss, model, loop_cpu_s=time.thread_time() - start)
