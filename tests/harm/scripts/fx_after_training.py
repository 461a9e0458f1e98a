# ruff: noqa
"""After training the model is wrapped and traced by torch.fx, and traced again in the middle of the next steps.
Compared: nodes of the graphs, whether they run."""

import torch
from _result import fit, net, one_step, result, sgd


class Served(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).softmax(-1)


model = net(16, 6, 4)
opt = sgd(model)
loss = fit(model, opt, 60)
nodes = []
for _ in range(3):
    graph = torch.fx.symbolic_trace(Served(model))
    nodes.append(len(graph.graph.nodes))
    loss = one_step(model, opt, torch.randn(8, 16))
result(loss, model, nodes=nodes, out=float(graph(torch.ones(2, 16)).sum()))
