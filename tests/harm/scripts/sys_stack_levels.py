# ruff: noqa
"""Warnings with stack levels 2, 3 and 4, logging's caller, sys._getframe and inspect.stack from forward, collate, the
optimizer, hooks, a closure, backward and a data set. Compared: which file and function each names."""

import inspect, logging, os, sys, warnings, torch
from torch.utils.data import DataLoader
from _result import net, result, sgd

seen, started = [], 40


def look(place):
    caller = sys._getframe(2)
    seen.append(f"{place}:{caller.f_code.co_name}:{os.path.basename(caller.f_code.co_filename)}")
    for level in (2, 3, 4):
        warnings.warn(f"{place}{level}", UserWarning, stacklevel=level)
    logging.getLogger("own").warning(place, stacklevel=2)


def show(message, category, filename, lineno, file=None, line=None):
    seen.append(f"{message}:{os.path.basename(filename)}")


class Handler(logging.Handler):
    def emit(self, record):
        seen.append(f"log:{record.funcName}:{os.path.basename(record.pathname)}")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, x):
        look("forward")
        return self.layers(x)


class Own(torch.optim.SGD):
    def step(self, closure=None):
        look("step")
        return super().step(closure)


class Rows(list):
    def __getitem__(self, i):
        if i % 8 == 0:
            look("row")
        return list.__getitem__(self, i)


def collate(rows):
    look("collate")
    return torch.stack(rows)


def closure():
    look("closure")
    return None


warnings.simplefilter("always")
warnings.showwarning = show
logging.getLogger("own").addHandler(Handler())
logging.getLogger("own").propagate = False
model = Net()
opt = Own(model.parameters(), lr=1e-2)
model.layers.register_forward_hook(lambda *a: look("hook"))
opt.register_step_post_hook(lambda *a: look("step hook"))
for epoch in range(2):
    for x in DataLoader(Rows(torch.randn(80, 16)), batch_size=8, collate_fn=collate):
        out = model(x)
        out.register_hook(lambda g: look("backward"))
        loss = out.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step(closure)
for text in sorted(set(seen)):
    print(text)
result(loss, model, seen=len(seen), kinds=len(set(seen)))
