# ruff: noqa
"""Three threads train their own models at once, with loaders. Compared: loss bits of all, exit code."""

import threading, torch
from torch.utils.data import DataLoader
from _result import result

found = {}


def train(n):
    g = torch.Generator().manual_seed(n)
    weights = (torch.randn(16, 1, generator=g) * 0.1).requires_grad_()
    model = torch.nn.Linear(16, 1)
    with torch.no_grad():
        model.weight.copy_(weights.T)
        model.bias.zero_()
    opt = torch.optim.SGD([weights, *model.parameters()], lr=1e-3)
    data = torch.randn(256, 16, generator=g)
    for epoch in range(5):
        for x in DataLoader(data, batch_size=16, generator=g):
            loss = (model(x) + x @ weights).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    found[n] = loss.item()


torch.manual_seed(0)
workers = [threading.Thread(target=train, args=(n,)) for n in range(3)]
for one in workers:
    one.start()
for one in workers:
    one.join()
torch.manual_seed(0)
result(sum(found[n] for n in range(3)), threads="any")
