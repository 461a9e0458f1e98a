# ruff: noqa
"""Optimizers that raise in step, in zero_grad, in their constructor, in a hook before or after the step; the script goes
on. Compared: what it caught, bits of the weights."""

import torch
from _result import net, result

caught = []


class Fails(torch.optim.SGD):
    def step(self, closure=None):
        if self.fails:
            raise ArithmeticError("overflow")
        return super().step(closure)


def refuse(*args):
    if opt.fails == "hook":
        raise LookupError("hook")


model = net()
try:
    torch.optim.SGD([], lr=1)
except ValueError as error:
    caught.append(str(error)[:20])
try:
    Fails(model.parameters(), lr=-1)
except ValueError as error:
    caught.append(str(error)[:20])
opt = Fails(model.parameters(), lr=1e-2)
opt.fails = False
opt.register_step_pre_hook(refuse)
opt.register_step_post_hook(lambda *a: refuse())
for step in range(40):
    loss = model(torch.randn(8, 16)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.fails = {5: True, 9: "hook", 20: True}.get(step, False)
    try:
        opt.step()
    except (ArithmeticError, LookupError) as error:
        caught.append(type(error).__name__)
result(loss, model, caught=caught)
