# ruff: noqa
"""Landmines as attributes, list entries and dict values of modules, and in their __dict__ under names such as config,
training data and _forward_hooks_extra. Compared: landmine calls."""

import torch
from _mines import mine, mines
from _result import fit, net, one_step, result, sgd


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()
        self.config, self.dataset, self.module = mine("config"), mine("dataset"), mine("module")
        self.listed, self.named = [mine("listed")] * 3, {"a": mine("value")}
        self.__dict__["pair"] = (mine("pair"), mine("pair"))

    def forward(self, x):
        return self.layers(x)


model = Net()
opt = sgd(model)
loss = fit(model, opt)
model.eval()
with torch.no_grad():
    model(torch.ones(1, 16))
result(loss, model, **mines())
