# ruff: noqa
"""A data set and a sampler whose len is a query of 3 s, which the script never asks. Compared: how often it was asked."""

import time, torch
from torch.utils.data import DataLoader, Dataset, Sampler
from _result import one_step, result, sgd

asked = 0


class Slow:
    def __len__(self):
        global asked
        asked += 1
        time.sleep(3)
        return 1 << 40


class Table(Slow, Dataset):
    def __getitem__(self, i):
        return torch.full((16,), i % 7 / 7)


class Forever(Slow, Sampler):
    def __iter__(self):
        i = 0
        while True:
            yield i
            i += 1


model = torch.nn.Linear(16, 1)
opt = sgd(model)
for n, x in enumerate(DataLoader(Table(), batch_size=8, sampler=Forever())):
    loss = one_step(model, opt, x)
    if n == 100:
        break
result(loss, model, asked=asked)
