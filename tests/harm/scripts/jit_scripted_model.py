# ruff: noqa
"""A TorchScript model trains, with attributes that only scripted modules have. Compared: loss bits, longest step."""

import torch
from _result import fit, result, sgd


class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x):
        h = torch.zeros_like(x)
        for _ in range(5):
            h = torch.tanh(self.a(x) + self.b(h))
        return h


model = torch.jit.script(Cell())
loss = fit(model, sgd(model), 40)
result(loss, model, kind=type(model).__name__, graph=len(str(model.graph)))
