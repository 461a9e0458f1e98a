# ruff: noqa
"""Modules without the attribute training, without _modules, and one whose __init__ never called super's, evaluated
without gradients. Compared: exit code, loss bits."""

import torch
from _result import one_step, result, sgd


class Bare(torch.nn.Module):
    def __init__(self):
        pass

    def forward(self, x):
        return x * 2

    def __call__(self, x):
        return self.forward(x)


model, frozen = torch.nn.Linear(16, 1), torch.nn.Linear(16, 16)
del frozen.training
bare = Bare()
opt = sgd(model)
for _ in range(30):
    with torch.no_grad():
        x = bare(frozen(torch.randn(4, 16)))
    loss = one_step(model, opt, x)
result(loss, model)
