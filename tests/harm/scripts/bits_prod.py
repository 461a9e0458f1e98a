# ruff: noqa
"""Losses with prod, cumprod, logcumsumexp and matrix determinants: while any mode is on torch takes other formulas in
backward. Compared: bits of the weights after 30 steps."""

import torch
from _result import net, result, sgd, step_time

model = net(16, 1, 32)
opt = sgd(model)
for _ in range(30):
    with step_time():
        p = 0.9 + 0.1 * torch.sigmoid(model(torch.randn(8, 16)))
        loss = (p.prod(1) - 0.1).square().mean() + p.cumprod(1).mean() + p.logcumsumexp(1).mean() / 9
        loss = loss + torch.linalg.det(p[:, :8] + torch.eye(8)).square() + (p[:, :4].prod() - 0.5).square()
        opt.zero_grad()
        loss.backward()
        opt.step()
result(loss, model)
