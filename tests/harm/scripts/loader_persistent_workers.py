# ruff: noqa
"""Persistent workers with prefetch over three epochs, an iterable data set that splits itself by worker, worker_init_fn and
a worker that raises. Compared: samples, order, errors, loss bits."""

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from _result import net, one_step, result, settle, sgd

started = 0


class Rows(IterableDataset):
    fails = False

    def __iter__(self):
        info = get_worker_info()
        for i in range(info.id, 160, info.num_workers):
            if self.fails and i > 40:
                raise KeyError(i)
            yield torch.full((16,), i / 160) + torch.rand(1) * 0.01


def start(number):
    torch.manual_seed(number)


model = net()
opt = sgd(model)
loader = DataLoader(
    Rows(), batch_size=8, num_workers=2, persistent_workers=True, prefetch_factor=3, worker_init_fn=start
)
total, errors = 0.0, []
for epoch in range(3):
    for x in loader:
        total += float(x.sum())
        loss = one_step(model, opt, x)
del loader
rows = Rows()
rows.fails = True
try:
    for x in DataLoader(rows, batch_size=8, num_workers=1):
        loss = one_step(model, opt, x)
except KeyError as error:
    errors.append(type(error).__name__)
settle()
result(loss, model, total=total, errors=errors)
