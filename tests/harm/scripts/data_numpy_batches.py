# ruff: noqa
"""Batches of numpy arrays, of object arrays that compare elementwise, of pandas-like tables with ambiguous truth, and memory
maps that raise when read. Compared: exit code, loss bits, how often the file was read."""

import numpy, torch
from torch.utils.data import DataLoader
from _result import one_step, result, sgd

read = 0


class Table:
    def __init__(self, rows):
        self.rows = rows

    def __eq__(self, other):
        return Table(self.rows)

    def __bool__(self):
        raise ValueError("the truth of a table is ambiguous")

    def __getattr__(self, name):
        global read
        if name.startswith("__"):
            raise AttributeError(name)
        read += 1
        return numpy.stack([numpy.asarray(r) for r in self.rows])

    __hash__ = None


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(16, 1)

    def forward(self, table, array, column="x"):
        return self.a(torch.as_tensor(array))


model = Net()
opt = sgd(model)
for table in DataLoader(torch.randn(160, 16), batch_size=8, collate_fn=Table):
    array = table.x
    loss = model(table, array).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        model(numpy.array([table, None], dtype=object), array)
result(loss, model, read=read)
