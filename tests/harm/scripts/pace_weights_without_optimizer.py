# ruff: noqa
"""A net whose weights need gradients but no optimizer has, beside an optimizer of 2,000 parameters. Compared: CPU time."""

import time, torch
from _result import result

loss_net, first = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
many = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(1)) for _ in range(2000))
opt = torch.optim.SGD([*many, *first.parameters()], lr=1e-3)
start = time.thread_time()
for step in range(600):
    y = first(torch.randn(4, 8))
    for _ in range(10):
        y = loss_net(y)
    loss = y.square().mean()
    loss.backward()
    if step % 10 == 0:
        opt.step()
        opt.zero_grad()
    with torch.no_grad():
        loss_net(y)
result(loss, first, loop_cpu_s=time.thread_time() - start)
