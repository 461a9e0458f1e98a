# ruff: noqa
"""An autograd graph of 60,000 levels, freed and run backward, and 400 nested Python functions in it. Compared: exit code."""

import torch
from _result import net, one_step, result, sgd, step_time

model = net()
opt = sgd(model)


class Down(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x * 1

    @staticmethod
    def backward(ctx, g):
        if ctx.depth:
            with torch.enable_grad():
                y = torch.ones(1, requires_grad=True)
                Down.apply(y, ctx.depth - 1).backward()
        return g, None


for _ in range(3):
    one_step(model, opt, torch.randn(8, 16))
    with step_time():
        x = model(torch.randn(8, 16)).mean()
        for _ in range(20_000):
            x = x + 0.0001
        opt.zero_grad()
        x.backward()
        opt.step()
Down.apply(torch.ones(1, requires_grad=True), 60).backward()
result(x, model)
