# ruff: noqa
"""150 children that live for a moment, and one, forked in forward, that goes on as a training of its own. Compared:
exit codes, loss bits of both, CPU time."""

import os, torch
from _result import one_step, result, sgd

role, child = "parent", 0


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(16, 1)
        self.forks = False

    def forward(self, x):
        global role, child
        if self.forks:
            child = os.fork()
            role = role if child else "child"
        return self.a(x)


model = Net()
opt = sgd(model)
for step in range(200):
    model.forks = step == 100
    loss = one_step(model, opt, torch.randn(4, 16))
    if role == "parent" and step < 150:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
if role == "parent":
    print("child", os.waitpid(child, 0)[1], flush=True)
result(loss, model, role=role, draws=torch.rand(1).item())  # random seeds itself anew in a child
