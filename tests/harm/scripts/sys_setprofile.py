# ruff: noqa
"""sys.setprofile and threading.setprofile count calls from the script's own file, and C calls. Compared: the counts."""

import collections, sys, threading, torch
from _result import net, result, sgd

counts = collections.Counter()


def profile(frame, event, arg):
    if frame.f_code.co_filename == __file__:
        counts[event] += 1


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, x):
        return self.layers(x)


def train():
    model = Net()
    opt = sgd(model)
    for _ in range(40):
        loss = model(torch.randn(8, 16)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, model


threading.setprofile(profile)
sys.setprofile(profile)
loss, model = train()
kept = sys.getprofile() is profile
sys.setprofile(None)
result(loss, model, kept=kept, **counts)
