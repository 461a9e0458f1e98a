# ruff: noqa
"""60 steps without, then torch.compile, then 40 steps with it. Compared: graphs, graph breaks and recompiles."""

import torch
from torch._dynamo.utils import counters
from _result import net, one_step, result, sgd

graphs = []


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(16, 16)

    def forward(self, x):
        return x + self.a(x).relu()


model = torch.nn.Sequential(*(Block() for _ in range(6)))
opt, run = sgd(model), model
for step in range(100):
    if step == 60:
        run = torch.compile(model, backend=backend)
    loss = one_step(run, opt, torch.randn(8, 16))
result(loss, model, graphs=len(graphs), breaks=sum(counters["graph_break"].values()), frames=dict(counters["frames"]))
