# ruff: noqa
"""Exceptions raised in forward, backward, the loader, the optimizer and checkpoints, whose classes trap text, truth,
comparison and traceback, and which the script catches. Compared: landmine calls, how many were caught."""

import torch
from torch.utils.data import DataLoader
from _mines import mine_type, mines, note
from _result import net, result, sgd

only = "__str__ __repr__ __eq__ __ne__ __hash__ __bool__ __len__ __reduce__ __dir__ __format__".split()


class Refusal(mine_type("exception", Exception, only=only)):
    def __getattribute__(self, name):
        note(f"exception:{name}")
        return super().__getattribute__(name)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, x, fails=False):
        if fails:
            raise Refusal("forward")
        return self.layers(x)


class Own(torch.optim.SGD):
    def step(self, closure=None):
        if closure:
            raise Refusal("step")
        super().step()


class Rows(list):
    def __getitem__(self, i):
        if i == 40:
            raise Refusal("row")
        return list.__getitem__(self, i)


def refuse(gradient):
    raise Refusal("backward")


model = Net()
opt, caught = Own(model.parameters(), lr=1e-2), 0
for epoch in range(3):
    try:
        for x in DataLoader(Rows(torch.randn(80, 16)), batch_size=8):
            for what in ("forward", "backward", "step", "none"):
                try:
                    out = model(x, fails=what == "forward")
                    if what == "backward":
                        out.register_hook(refuse)
                    loss = out.square().mean()
                    opt.zero_grad()
                    loss.backward()
                    opt.step(print if what == "step" else None)
                except Refusal:
                    caught += 1
    except Refusal:
        caught += 100
result(loss, model, caught=caught, **mines())
