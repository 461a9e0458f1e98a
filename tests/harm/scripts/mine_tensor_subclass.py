# ruff: noqa
"""Batches, inputs, parameters and losses of tensor subclasses that count every torch function and dispatch on them, and
trap attributes. Compared: landmine calls, and that the counts are equal."""

import torch
from torch.utils.data import DataLoader
from _mines import mines, note
from _result import result


class Counting(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        note("function", 2)
        return super().__torch_function__(func, types, args, kwargs or {})

    def __len__(self):
        note("tensor.__len__")
        return torch.Tensor.__len__(self)

    def __bool__(self):
        note("tensor.__bool__")
        return torch.Tensor.__bool__(self)


model = torch.nn.Linear(16, 1)
model.weight = torch.nn.Parameter(model.weight.detach().as_subclass(Counting))
opt = torch.optim.SGD(model.parameters(), lr=1e-2, foreach=False)
for x in DataLoader(torch.randn(160, 16), batch_size=8, collate_fn=lambda r: torch.stack(r).as_subclass(Counting)):
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
with torch._C.DisableTorchFunctionSubclass():
    loss = float(loss)
result(loss, **mines())
