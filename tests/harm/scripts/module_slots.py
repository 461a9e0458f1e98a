# ruff: noqa
"""Modules with __slots__, with a __dict__ that is a mapping of their own, made by __new__, a callable class attribute
forward, a forward set on the instance, a partial, and one whose __call__ is its own. Compared: loss bits."""

import functools, torch
from _result import fit, net, result, sgd


class Slotted(torch.nn.Module):
    __slots__ = ("scale", "__weakref_x")

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "scale", 0.5)

    def forward(self, x):
        return x * self.scale


class Made(torch.nn.Module):
    def __new__(cls):
        made = super().__new__(cls)
        torch.nn.Module.__init__(made)
        return made

    def __init__(self):
        self.forward = functools.partial(torch.mul, 0.5)


class Called(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def __call__(self, x):
        return super().__call__(x) + self.layers(x)

    forward = staticmethod(torch.tanh)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.Sequential(Slotted(), Made(), Called())

    forward = property(lambda self: lambda x: self.parts(x).sum(1))


model = Net()
loss = fit(model, sgd(model, 1e-4), 40)
result(loss, model)
