# ruff: noqa
# exit: 1
"""The script's own sys.excepthook, threading.excepthook, sys.unraisablehook and breakpointhook, and an error that nobody
catches. Compared: which were called, and that they are still the script's."""

import sys, threading, torch
from _result import fit, net, result, sgd

seen = []


def hook(kind):
    return lambda *a: (seen.append(kind), print("hook", kind, flush=True))


sys.excepthook, threading.excepthook, sys.unraisablehook = mine = hook("sys"), hook("thread"), hook("unraisable")


class Fails:
    def __del__(self):
        raise ValueError


model = net()
opt = sgd(model)
loss = fit(model, opt, 30)
Fails()
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
still = (sys.excepthook, threading.excepthook, sys.unraisablehook) == mine
result(loss, model, seen=seen, still=still)
model(torch.ones(1, 3))
