# ruff: noqa
"""The script counts its operators by a dispatch mode of its own around everything. Compared: the counts."""

import collections, torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader
from _result import one_step, result, sgd

counts = collections.Counter()


class Count(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


model = torch.nn.Sequential(torch.nn.Embedding(64, 8), torch.nn.Flatten(), torch.nn.Linear(96, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.randint(0, 64, (400, 12))
with Count():
    for x in DataLoader(data, batch_size=8):
        loss = one_step(model, opt, x)
result(loss, model, operators=sum(counts.values()), names=len(counts))
