# ruff: noqa
"""Gradient penalties: autograd.grad with create_graph, a backward through it, retained graphs, backward of several losses,
hooks that run a backward, inputs of backward given by name. Compared: loss bits."""

import torch
from _result import net, result, sgd

model = net()
opt = sgd(model)
for step in range(30):
    x = torch.randn(8, 16).requires_grad_()
    out = model(x)
    (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    loss = out.square().mean() + (g.norm(2, 1) - 1).square().mean()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    out.mean().backward(inputs=[model[0].weight], retain_graph=True)
    torch.autograd.backward([out.sum() * 0.1, g.sum()], retain_graph=False)
    opt.step()
result(loss, model)
