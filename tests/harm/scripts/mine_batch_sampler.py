# ruff: noqa
"""The batch sampler is a landmine that can only be iterated, and its index lists are landmines. Compared: landmine calls."""

import torch
from torch.utils.data import DataLoader
from _mines import NAMED, mine_type, mines
from _result import one_step, result, sgd

Indices = mine_type("indices", list, only=("__len__", "__bool__", "__eq__", "__hash__", "__getitem__", "__repr__"))


def lists(self):
    for i in range(0, 160, 8):
        yield Indices(range(i, i + 8))


model = torch.nn.Linear(16, 1)
opt = sgd(model)
sampler = mine_type("batch_sampler", named=(*NAMED, "drop_last", "sampler"), __iter__=lists)()
loader = DataLoader(list(torch.randn(160, 16)), batch_sampler=sampler)
for epoch in range(2):
    for x in loader:
        loss = one_step(model, opt, x)
result(loss, model, **mines())
