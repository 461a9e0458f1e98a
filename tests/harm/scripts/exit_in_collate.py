# ruff: noqa
# exit: 1
"""SystemExit with a text is raised in collate, a closure, the optimizer, a hook and a sampler; all but the last are caught.
Compared: exit code, the text on standard error."""

import torch
from torch.utils.data import DataLoader
from _result import net, result, sgd

where, caught = "", []


def leave(place):
    if where == place:
        raise SystemExit(f"leaving at {place}")


class Own(torch.optim.SGD):
    def step(self, closure=None):
        leave("optimizer")
        return super().step(closure)


class Order:
    def __iter__(self):
        leave("sampler")
        yield from range(16)


def collate(rows):
    leave("collate")
    return torch.stack(rows)


def closure():
    opt.zero_grad()
    leave("closure")
    loss = model(x).square().mean()
    loss.backward()
    return loss


model = net()
opt = Own(model.parameters(), lr=1e-2)
model.register_forward_hook(lambda *a: leave("hook"))
for where in ("none", "collate", "closure", "optimizer", "hook", "none", "sampler"):
    if where == "sampler":
        result(loss, model, caught=caught)
    try:
        for x in DataLoader(torch.randn(16, 16), batch_size=8, sampler=Order(), collate_fn=collate):
            loss = opt.step(closure)
    except SystemExit as error:
        if where == "sampler":
            raise
        caught.append(where)
