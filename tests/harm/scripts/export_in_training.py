# ruff: noqa
"""torch.export, jit.trace, jit.script, make_fx and torch.fx in the middle of a training, every few steps, also with the
optimizer's step inside. Compared: sizes of the graphs, loss bits."""

import warnings, torch
from torch.fx.experimental.proxy_tensor import make_fx
from _result import net, one_step, result, sgd

warnings.simplefilter("ignore")
model = net()
opt = sgd(model)
sizes, x = [], torch.ones(4, 16)


def train_step(v):
    loss = model(v).square().mean()
    return torch.autograd.grad(loss, list(model.parameters()))


for step in range(14):
    loss = one_step(model, opt, torch.randn(8, 16))
    if step in (0, 2, 11, 12):
        sizes.append(len(torch.export.export(model, (x,)).graph.nodes))
        sizes.append(len(list(torch.jit.trace(model, (x,)).graph.nodes())))
        sizes.append(len(list(torch.jit.script(model).graph.nodes())))
        sizes.append(len(make_fx(train_step)(x).graph.nodes))
        sizes.append(len(torch.fx.symbolic_trace(model).graph.nodes))
result(loss, model, sizes=sizes)
