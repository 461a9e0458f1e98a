# ruff: noqa
"""A model of 3,000 modules, and one built anew every step. Compared: CPU time, longest step after the third."""

import torch
from _result import one_step, result, sgd


class Scale(torch.nn.Module):
    def forward(self, x):
        return x * 0.999


model = torch.nn.Sequential(torch.nn.Linear(16, 1), *(Scale() for _ in range(3000)))
opt = sgd(model)
for _ in range(25):
    loss = one_step(model, opt, torch.randn(8, 16))
for _ in range(25):
    model = torch.nn.Sequential(torch.nn.Linear(16, 1), *(Scale() for _ in range(300)))
    loss = one_step(model, sgd(model), torch.randn(8, 16))
result(loss, model)
