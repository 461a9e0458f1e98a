# ruff: noqa
"""The optimizer's step, the whole training step and a step with hooks are compiled (backend eager). Compared: graphs,
breaks, bits of the weights."""

import torch
from torch._dynamo.utils import counters
from _result import net, result

model = net()
opt = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
graphs = []


def backend(graph, inputs):
    graphs.append(len(graph.graph.nodes))
    return graph.forward


@torch.compile(backend=backend)
def step():
    opt.step()


for n in range(24):
    loss = model(torch.randn(8, 16)).square().mean()
    opt.zero_grad()
    loss.backward()
    if n == 1:
        opt.register_step_post_hook(lambda *a: None)
    step() if n % 12 > 2 else opt.step()
result(loss, model, graphs=graphs, breaks=sum(counters["graph_break"].values()))
