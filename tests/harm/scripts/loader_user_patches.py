# ruff: noqa
"""The script itself replaces torch's functions, before, in and after the training: mock.patch of Module.__call__ and
DataLoader.__iter__, an own torch.save, a reload of torch.utils.data. Compared: what its replacements saw."""

import importlib, io, torch
from unittest import mock
from torch.utils.data import DataLoader
from _result import fit, net, one_step, result, sgd

seen = []
model = net()
opt = sgd(model)
fit(model, opt, 10)
original = torch.nn.Module.__call__


def call(self, *args, **kwargs):
    seen.append("call")
    return original(self, *args, **kwargs)


with (
    mock.patch.object(torch.nn.Module, "__call__", call),
    mock.patch("torch.save", lambda *a, **k: seen.append("save")),
):
    fit(model, opt, 10)
    torch.save({}, io.BytesIO())
restored = torch.nn.Module.__call__ is original
with mock.patch.object(DataLoader, "__iter__", autospec=True, side_effect=lambda self: iter([torch.ones(8, 16)])):
    for x in DataLoader(torch.randn(80, 16)):
        loss = one_step(model, opt, x)
with mock.patch.object(torch.optim.SGD, "step", autospec=True) as step:
    fit(model, opt, 5)
importlib.reload(torch.utils.data)
for x in torch.utils.data.DataLoader(torch.randn(80, 16), batch_size=8):
    loss = one_step(model, opt, x)
torch.nn.Module.__call__ = call
loss = fit(model, opt, 10)
buffer = io.BytesIO()
torch.save(model.state_dict(), buffer)
result(
    loss,
    model,
    calls=seen.count("call"),
    saves=seen.count("save"),
    restored=restored,
    steps=step.call_count,
    bytes=buffer.tell(),
)
