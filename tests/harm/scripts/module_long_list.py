# ruff: noqa
"""Modules without parameters that hold a list of 1,000,000 numbers, a dict of 300,000 and modules in plain lists, made
anew for each step. Compared: CPU time, longest step."""

import torch
from _result import one_step, result, sgd


class Mix(torch.nn.Module):
    def __init__(self, weights, table, inner):
        super().__init__()
        self.weights, self.table, self.inner = weights, table, [inner] * 200

    def forward(self, x):
        return self.inner[0](x) * self.weights[0] + self.table[0]


weights, table = [1.0] * 1_000_000, dict.fromkeys(range(300_000), 0.0)
model, inner = torch.nn.Linear(16, 1), torch.nn.Tanh()
opt = sgd(model)
for _ in range(60):
    loss = one_step(model, opt, Mix(weights, table, inner)(torch.randn(8, 16)))
result(loss, model)
