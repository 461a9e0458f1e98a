# ruff: noqa
"""A model whose first input is an adjacency dict of 200,000 nodes, and a list of 300,000 tensors as another. Compared:
CPU time, longest step."""

import torch
from _result import result, step_time


class Walks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.nodes = torch.nn.Embedding(2000, 8)

    def forward(self, graph, start, *, features):
        ends = torch.tensor([graph[s][0] for s in start])
        return (self.nodes(torch.tensor(start)) * self.nodes(ends)).sum(1) + features[0]


graph = {i: [(i * 7 + k) % 2000 for k in range(2)] for i in range(200_000)}
features = [torch.zeros(1)] * 300_000
model = Walks()
opt = torch.optim.SGD(model.parameters(), lr=1e-2)
for n in range(60):
    with step_time():
        loss = (model(graph, [(n * 31 + k) % 2000 for k in range(32)], features=features) - 1).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
result(loss, model)
