# ruff: noqa
"""A module with trapped attributes, length, comparison, hash, truth, text and iteration, inside a plain one, and trained
by itself. Compared: landmine calls."""

import torch
from _mines import mine_type, mines, note
from _result import fit, net, result, sgd

only = "__len__ __bool__ __eq__ __ne__ __hash__ __repr__ __str__ __iter__ __contains__ __dir__ __reduce_ex__ __getitem__".split()


class Net(mine_type("module", torch.nn.Module, only=only)):
    def __init__(self):
        super().__init__()
        self.layers = net(16, 1, 16)

    def __getattr__(self, name):
        note(f"getattr:{name}")
        return super().__getattr__(name)

    def __getattribute__(self, name):
        note(f"module:{name}")
        return super().__getattribute__(name)

    def __len__(self):
        note("module.__len__")
        return 0

    def __iter__(self):
        note("module.__iter__")
        return iter(())

    @property
    def device(self):
        note("module.device")
        raise AttributeError("device")

    def parameters(self, recurse=True):
        note("module.parameters")
        return super().parameters(recurse)

    def forward(self, x):
        return self.layers(x)


inner = Net()
outer = torch.nn.Sequential(inner, torch.nn.Linear(16, 1))
loss = fit(inner, sgd(inner))
loss = fit(outer, sgd(outer))
with torch.no_grad():
    inner(torch.ones(1, 16))
result(loss, outer, **mines())
