# ruff: noqa
"""An optimizer whose step takes the model as its first argument. Compared: exit code, bits of the weights."""

import torch
from _result import net, result


class Trust(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, model):
        for _, p in model.named_parameters():
            p -= self.param_groups[0]["lr"] * p.grad / (p.grad.norm() + 1e-6)


model = net()
opt = Trust(model.parameters())
for _ in range(40):
    loss = model(torch.randn(8, 16)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step(model)
result(loss, model)
