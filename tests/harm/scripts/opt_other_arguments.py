# ruff: noqa
"""Optimizers whose step takes a loss, names, a function as second argument, or nothing but keywords, and one that is no
torch Optimizer at all. Compared: exit code, what each got."""

import torch
from _result import net, result

got = []


class Sloppy(torch.optim.SGD):
    def step(self, *values, closure=None, **named):
        got.append((len(values), callable(closure), *sorted(named)))
        super().step()
        return named.get("back", "nothing")


class Foreign:
    def __init__(self, params):
        self.params = list(params)

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self, loss):
        for p in self.params:
            p -= 0.01 * loss * p.grad


model = net()
sloppy, foreign = Sloppy(model.parameters(), lr=1e-2), Foreign(model.parameters())
for step in range(32):
    loss = model(torch.randn(8, 16)).square().mean()
    foreign.zero_grad()
    loss.backward()
    if step % 4 == 0:
        sloppy.step(loss, "name", lambda: None)
    elif step % 4 == 1:
        assert sloppy.step(back=5, optimizer=1, self_=2, args=3, kwargs=4, hook=6) == 5
    elif step % 4 == 2:
        sloppy.step(print, closure=lambda: None)
    else:
        foreign.step(loss.item())
result(loss, model, got=len(got), kinds=len(set(got)))
