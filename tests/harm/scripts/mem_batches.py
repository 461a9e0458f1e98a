# ruff: noqa
"""Batches of 40 MB, losses, outputs and models dropped at once; a model of 100 MB replaced three times. Compared: peak memory,
memory at the end."""

import torch
from torch.utils.data import DataLoader
from _result import one_step, result, rss_mb, sgd


class Rows(list):
    def __getitem__(self, i):
        return torch.full((20_000, 16), i / 32)


model = torch.nn.Linear(16, 1)
opt = sgd(model)
for x in DataLoader(Rows(range(24)), batch_size=32 // 1 // 1):
    loss = one_step(model, opt, x)
loss = loss.item()
del x
for _ in range(3):
    big = torch.nn.Linear(5000, 5000)
    loss = one_step(big, sgd(big, 1e-6), torch.ones(2, 5000)).item()
    del big
result(loss, model, end_mb=rss_mb())
