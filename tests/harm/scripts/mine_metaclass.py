# ruff: noqa
"""Batches, inputs, modules, data sets, samplers, closures and optimizers whose metaclass traps: attributes, ==, hash,
isinstance and text of their classes. Compared: landmine calls."""

import torch
from torch.utils.data import DataLoader, Dataset
from _mines import Meta, mines
from _result import net, result, sgd


class Batch(metaclass=Meta):
    __slots__ = ("x",)


class Rows(Dataset, metaclass=Meta):
    def __len__(self):
        return 160

    def __getitem__(self, i):
        return torch.full((16,), i / 160)


class Order(metaclass=Meta):
    def __iter__(self):
        return iter(range(160))


class Net(torch.nn.Module, metaclass=Meta):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, batch, **named):
        return self.layers(batch.x)


class Own(torch.optim.SGD, metaclass=Meta):
    pass


class Closure(metaclass=Meta):
    def __call__(self):
        return None


def collate(rows):
    batch = Batch()
    batch.x = torch.stack(rows)
    return batch


model = Net()
opt, closure = Own(model.parameters(), lr=1e-2), Closure()
loader = DataLoader(Rows(), batch_size=8, sampler=Order(), collate_fn=collate)
for epoch in range(2):
    for batch in loader:
        loss = model(batch, extra=batch).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step(closure)
result(loss, model, **mines())
