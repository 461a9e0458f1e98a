# ruff: noqa
"""The closure is a landmine that can only be called. Compared: landmine calls."""

import torch
from _mines import NAMED, mine_type, mines
from _result import net, result, sgd


def call(self):
    opt.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    return loss


model = net()
closure = mine_type("closure", named=(*NAMED, "__name__", "__globals__"), __call__=call)()
for opt in (sgd(model), torch.optim.LBFGS(model.parameters(), max_iter=3), torch.optim.Adam(model.parameters())):
    for _ in range(10):
        loss = opt.step(closure)
result(loss, model, **mines())
