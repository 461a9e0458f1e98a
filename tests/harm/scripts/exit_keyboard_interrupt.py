# ruff: noqa
# exit: -2
"""Ctrl-C by the script itself, in forward, in a worker wait, in backward: caught twice, then left. Compared: exit code, how
many steps were done, the last line of standard error."""

import os, signal, torch
from _result import net, result, sgd


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, x, interrupt=False):
        if interrupt:
            signal.raise_signal(signal.SIGINT)
        return self.layers(x)


model = Net()
opt, caught = sgd(model), []
for step in range(40):
    try:
        loss = model(torch.randn(8, 16), interrupt=step in (10, 39)).square().mean()
        opt.zero_grad()
        if step == 20:
            loss.register_hook(lambda g: signal.raise_signal(signal.SIGINT))
        loss.backward()
        opt.step()
    except KeyboardInterrupt:
        caught.append(step)
        if step == 39:
            result(loss, model, caught=caught)
            raise
