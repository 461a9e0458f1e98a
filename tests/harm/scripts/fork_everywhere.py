# ruff: noqa
"""os.fork in forward, a hook, backward, collate, a sampler, a closure, the optimizer and a gc callback; each child trains two
steps and leaves by os._exit. Compared: statuses, loss bits of the parent."""

import gc, os, sys, torch
from torch.utils.data import DataLoader
from _result import net, result, sgd

statuses, at = [], ""


def fork(place):
    global at
    if at != place:
        return
    at = ""
    pid = os.fork()
    if pid == 0:
        try:
            own = net()
            opt = sgd(own)
            for x in DataLoader(torch.randn(16, 16), batch_size=8):
                loss = own(x).square().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
            os._exit(int(torch.isfinite(loss)) + 40)
        finally:
            os._exit(1)
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, x):
        fork("forward")
        return self.layers(x)


class Own(torch.optim.SGD):
    def step(self, closure=None):
        fork("step")
        return super().step(closure)


class Order:
    def __iter__(self):
        fork("sampler")
        return iter(range(8))


def collate(rows):
    fork("collate")
    return torch.stack(rows)


def closure():
    fork("closure")
    opt.zero_grad()
    out = model(x)
    out.register_hook(lambda g: fork("backward"))
    loss = out.square().mean()
    loss.backward()
    return loss


model = Net()
opt = Own(model.parameters(), lr=1e-2)
model.layers.register_forward_hook(lambda *a: fork("hook"))
gc.callbacks.append(lambda *a: fork("gc"))
for at in ("none", "forward", "hook", "backward", "collate", "sampler", "closure", "step", "gc", "none"):
    for x in DataLoader(torch.randn(8, 16), batch_size=8, sampler=Order(), collate_fn=collate):
        loss = opt.step(closure)
        gc.collect()
result(loss, model, statuses=statuses)
