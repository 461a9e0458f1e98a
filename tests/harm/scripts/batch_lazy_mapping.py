# ruff: noqa
"""A batch that decodes its fields when they are asked for. Compared: how many fields were decoded, loss bits."""

import collections, collections.abc, torch
from torch.utils.data import DataLoader
from _result import one_step, result, sgd

decoded = collections.Counter()


class Lazy(collections.abc.Mapping):
    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, name):
        decoded[name] += 1
        if name not in ("audio", "video", "x"):
            raise KeyError(name)
        return torch.stack(self.rows)

    def __iter__(self):
        decoded["iter"] += 1
        return iter(("audio", "video", "x"))

    def __len__(self):
        decoded["len"] += 1
        return 3


model = torch.nn.Linear(16, 1)
opt = sgd(model)
for batch in DataLoader(torch.randn(320, 16), batch_size=8, collate_fn=Lazy):
    loss = one_step(model, opt, batch["x"])
result(loss, model, decoded=sum(decoded.values()))
