# ruff: noqa
"""A module whose parameters, named_parameters, buffers, modules and children refuse, called 10,000 times. Compared: CPU
time, how often they were asked."""

import torch
from _result import one_step, result, sgd

asked = 0


def refuse(self, *args, **kwargs):
    global asked
    asked += 1
    raise NotImplementedError("the weights are on another host")


class Remote(torch.nn.Module):
    parameters = named_parameters = buffers = named_buffers = modules = named_modules = children = state_dict = refuse

    def forward(self, x):
        return torch.tanh(x)


remote, model = Remote(), torch.nn.Linear(16, 1)
opt = sgd(model)
for _ in range(250):
    x = torch.randn(4, 16)
    for _ in range(40):
        x = remote(x)
    loss = one_step(model, opt, x)
result(loss, model, asked=asked)
