# ruff: noqa
"""Eleven steps, then inference by torch.compile with fullgraph. Compared: graphs that the backend got."""

import torch
from _result import fit, net, result, sgd

graphs = []


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


model = net()
loss = fit(model, sgd(model), 11)
fast = torch.compile(model, backend=backend, fullgraph=True)
with torch.no_grad():
    for _ in range(10):
        out = fast(torch.ones(4, 16))
result(
    loss,
    graphs=len(graphs),
    nodes=[len(g.graph.nodes) for g in graphs],
    same=torch.equal(out, model(torch.ones(4, 16))),
)
