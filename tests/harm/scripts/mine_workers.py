# ruff: noqa
"""Landmines as data set, samples, collate function, worker_init_fn and generator attributes in two worker processes.
Compared: landmine calls there, sent with the batches."""

import torch
from torch.utils.data import DataLoader, Dataset
from _mines import FOREIGN, mine, mine_type, mines
from _result import one_step, result, sgd, settle


def item(self, i):
    return mine("sample"), torch.full((16,), i / 160)


def length(self):
    return 160


def collate(self, rows):
    return torch.stack([x for _, x in rows]), torch.tensor(sum(FOREIGN.values()))


def start(self, number):
    return None


Rows = mine_type("rows", named=("dataset", "transform", "data"), __len__=length, __getitem__=item)
Collate = mine_type("collate", named=("__name__", "__code__"), __call__=collate)
Start = mine_type("start", named=("__name__", "__code__"), __call__=start)
model = torch.nn.Linear(16, 1)
opt = sgd(model)
remote = 0
loader = DataLoader(Rows(), batch_size=8, num_workers=2, collate_fn=Collate(), worker_init_fn=Start())
for epoch in range(2):
    for x, mines_there in loader:
        loss = one_step(model, opt, x)
        remote += int(mines_there)
settle()
result(loss, model, remote=remote, **mines())
