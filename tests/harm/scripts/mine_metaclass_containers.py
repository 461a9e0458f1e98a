# ruff: noqa
"""Batches and inputs that are lists, tuples, dicts and tensors of classes whose metaclass traps, also as elements of plain
ones: a check of the exact type must not compare classes. Compared: landmine calls."""

import torch
from torch.utils.data import DataLoader
from _mines import Meta, mines
from _result import net, result, sgd


class List(list, metaclass=Meta):
    pass


class Tuple(tuple, metaclass=Meta):
    pass


class Dict(dict, metaclass=Meta):
    pass


class Number(float, metaclass=Meta):
    pass


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()
        self.sizes, self.rate = List([1, 2]), Number(0.5)

    def forward(self, x, batch, **named):
        return Tuple((self.layers(x), batch))


made = []


def collate(rows):
    made.append(torch.stack(rows))
    x, n = made[-1], Number(1)
    return (List([x, n]), Tuple((x, n)), Dict(x=x, n=n), [n, x], (n, List([x])), {"n": n, "x": Dict(x=x)})[
        len(made) % 6
    ]


model = Net()
opt = sgd(model)
opt.param_groups[0]["momentum_like"] = Number(0.9)
for batch in DataLoader(torch.randn(320, 16), batch_size=8, collate_fn=collate):
    loss = model(made[-1], batch, named=batch)[0].square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
result(loss, model, **mines())
