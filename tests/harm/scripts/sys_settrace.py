# ruff: noqa
"""sys.settrace counts the lines and calls of the script's own file. Compared: the counts, and that the trace function is
still the script's at every step."""

import collections, sys, threading, torch
from torch.utils.data import DataLoader
from _result import net, result, sgd

counts, lost = collections.Counter(), 0


def trace(frame, event, arg):
    if frame.f_code.co_filename != __file__:
        return None
    counts[event] += 1
    return trace


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, x):
        return self.layers(x)


def train():
    global lost
    model = Net()
    opt = sgd(model)
    for x in DataLoader(torch.randn(240, 16), batch_size=8, collate_fn=collate):
        loss = model(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        lost += sys.gettrace() is not trace
    return loss, model


def collate(rows):
    return torch.stack(rows)


threading.settrace(trace)
sys.settrace(trace)
loss, model = train()
sys.settrace(None)
result(loss, model, lost=lost, **counts)
