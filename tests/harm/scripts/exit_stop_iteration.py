# ruff: noqa
"""StopIteration, GeneratorExit and StopAsyncIteration raised in forward, collate, data set and closure, and a loader that
is closed half way. Compared: what the script caught, loss bits."""

import torch
from torch.utils.data import DataLoader, Dataset
from _result import net, one_step, result, sgd

caught = []


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        if i == at:
            raise kind("row")
        return torch.full((16,), i / 64)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, x, kind=None):
        if kind:
            raise kind("forward")
        return self.layers(x)


model = Net()
opt = sgd(model)
for kind in (StopIteration, GeneratorExit, StopAsyncIteration, KeyError, RecursionError, MemoryError):
    for at in (-1, 20):
        n = 0
        try:
            for x in DataLoader(Rows(), batch_size=8):
                loss = one_step(model, opt, x)
                n += 1
        except BaseException as error:
            caught.append(type(error).__name__[0])
        caught.append(n)
    try:
        model(x, kind)
    except kind as error:
        caught.append(len(error.args))
iterator = iter(DataLoader(Rows(), batch_size=8))
next(iterator)
del iterator
result(loss, model, caught="".join(map(str, caught)))
