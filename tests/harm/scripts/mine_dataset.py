# ruff: noqa
"""Data sets that are landmines but for what torch must ask: with indices, with __getitems__, as an iterable. Compared:
landmine calls."""

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from _mines import NAMED, SPECIAL, mine_type, mines
from _result import one_step, result, sgd

asked = 0


def length(self):
    global asked
    asked += 1
    return 160


def item(self, i):
    return torch.full((16,), i / 160)


def items(self, indices):
    return [item(self, i) for i in indices]


def rows(self):
    return (item(self, i) for i in range(160))


named = (*NAMED, "transform", "indices", "datasets", "tensors", "data_source", "column_names", "cache")
kinds = (
    mine_type("map", named=named, __len__=length, __getitem__=item),
    mine_type("map", Dataset, only=SPECIAL, named=named, __len__=length, __getitem__=item, __getitems__=items),
    mine_type("iterable", IterableDataset, named=named, __iter__=rows),
)
model = torch.nn.Linear(16, 1)
opt = sgd(model)
for kind in kinds:
    loader = DataLoader(kind(), batch_size=8)
    for epoch in range(2):
        for x in loader:
            loss = one_step(model, opt, x)
result(loss, model, asked=asked, **mines())
