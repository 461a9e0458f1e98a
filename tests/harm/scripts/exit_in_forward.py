# ruff: noqa
# exit: 7
"""sys.exit(7) in a module's forward, inside a loader's loop; finally blocks and atexit functions run. Compared: exit code,
what is printed on the way out."""

import atexit, sys, torch
from torch.utils.data import DataLoader
from _result import net, one_step, result, sgd


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.calls = net(), 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 30:
            sys.exit(7)
        return self.layers(x)


atexit.register(print, "atexit")
model = Net()
opt = sgd(model)
try:
    while True:
        for x in DataLoader(torch.randn(80, 16), batch_size=8):
            loss = one_step(model, opt, x)
finally:
    result(loss, model, inside=type(sys.exc_info()[1]).__name__)
