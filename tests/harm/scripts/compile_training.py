# ruff: noqa
"""torch.compile with fullgraph from the first step (backend aot_eager), with the loss inside, then in an evaluation.
Compared: graphs, breaks, recompiles, loss bits."""

import torch
from torch._dynamo.utils import counters
from _result import net, result, sgd

model = net()
opt = sgd(model)


@torch.compile(backend="aot_eager", fullgraph=True)
def loss_of(x):
    return model(x).square().mean()


for step in range(30):
    loss = loss_of(torch.randn(8, 16))
    opt.zero_grad()
    loss.backward()
    opt.step()
with torch.no_grad():
    value = loss_of(torch.ones(8, 16))
model.compile(backend="eager")
for step in range(20):
    loss = model(torch.randn(8, 16)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
told = {k: sum(counters[k].values()) for k in ("graph_break", "stats", "frames", "unimplemented", "recompiles")}
result(loss, model, value=float(value), **told)
