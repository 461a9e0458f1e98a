# ruff: noqa
"""The sampler is a landmine that can only be iterated. Compared: landmine calls."""

import torch
from torch.utils.data import DataLoader, Sampler
from _mines import NAMED, mine_type, mines
from _result import one_step, result, sgd


def order(self):
    return iter(range(0, 160, 2))


model = torch.nn.Linear(16, 1)
opt = sgd(model)
named = [n for n in NAMED if n != "sampler"]
for bases in ((), (Sampler,)):
    sampler = mine_type(
        "sampler", *bases, named=(*named, "num_samples", "replacement", "data_source"), __iter__=order
    )()
    for epoch in range(2):
        for x in DataLoader(torch.randn(160, 16), batch_size=8, sampler=sampler):
            loss = one_step(model, opt, x)
result(loss, model, **mines())
