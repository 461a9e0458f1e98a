# ruff: noqa
"""LBFGS with strong Wolfe line search, which calls its closure many times. Compared: how often, bits of the weights."""

import torch
from _result import net, result

calls = 0


def closure():
    global calls
    calls += 1
    opt.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    return loss


model, x, y = net(), torch.randn(32, 16), torch.randn(32, 1)
opt = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe", max_iter=8)
for _ in range(12):
    loss = opt.step(closure)
result(loss, model, calls=calls)
