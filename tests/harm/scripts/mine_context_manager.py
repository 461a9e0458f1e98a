# ruff: noqa
"""Landmines that are context managers around steps, loaders, epochs and inside forward. Compared: landmine calls."""

import torch
from torch.utils.data import DataLoader
from _mines import NAMED, mine_type, mines
from _result import net, one_step, result, sgd


def enter(self):
    return self


def leave(self, *error):
    return None


Around = mine_type("around", named=NAMED, __enter__=enter, __exit__=leave)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, x):
        with Around() as inside:
            return self.layers(x)


model = Net()
opt = sgd(model)
with Around() as outer:
    for epoch in range(2):
        with Around() as middle:
            for x in DataLoader(torch.randn(160, 16), batch_size=8):
                with Around() as step:
                    loss = one_step(model, opt, x)
result(loss, model, **mines())
