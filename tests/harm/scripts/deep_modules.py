# ruff: noqa
"""A chain of modules, each calling the next, near the recursion limit: 310 from Python 3.12 on, 244 before, where a call
through C counts as a level too.
Compared: exit code, loss bits."""

import sys
import torch
from _result import fit, result, sgd


class Link(torch.nn.Module):
    def __init__(self, rest):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(16))
        self.rest = rest

    def forward(self, x):
        x = x * self.scale
        return x if self.rest is None else self.rest(x)


model = None
for _ in range(310 if sys.version_info >= (3, 12) else 244):
    model = Link(model)
opt = sgd(model, 1e-4)
loss = fit(model, opt, 20)
result(loss, scale=float(model.scale.sum()))
