# ruff: noqa
"""Training on a thread with a stack of 256 kB, and a deep autograd graph of 3,000 levels freed on it. Compared: exit code; the number of threads varies alone too."""

import threading, torch
from torch.utils.data import DataLoader
from _result import net, one_step, result, sgd

found = []


def train():
    model = net()
    opt = sgd(model)
    for x in DataLoader(torch.randn(400, 16), batch_size=8):
        loss = one_step(model, opt, x)
    x = model(torch.ones(1, 16)).sum()
    for _ in range(3000):
        x = x * 1.0001
    x.backward()
    found.append((loss, model))


threading.stack_size(256 << 10)
thread = threading.Thread(target=train)
thread.start()
thread.join()
result(*found[0], threads="any")
