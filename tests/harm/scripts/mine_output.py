# ruff: noqa
"""Modules return landmines, and results of backward, of loss functions and of schedulers are landmines or wrapped in
them. Compared: landmine calls."""

import torch
from _mines import mine, mine_type, mines
from _result import net, result, sgd


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, x):
        out = Output()
        object.__setattr__(out, "hidden", self.layers(x))
        return out


class Trap(torch.nn.Module):
    def forward(self, *args):
        return mine("returned")


class Loss(torch.nn.Module):
    def forward(self, out):
        return {"loss": object.__getattribute__(out, "hidden").square().mean(), "trap": mine("beside the loss")}


Output = mine_type("output", named=("loss", "logits", "shape", "items", "to_tuple"))
model, trap, criterion = Net(), Trap(), Loss()
opt = sgd(model)
for _ in range(40):
    out = model(torch.randn(8, 16))
    trap(out)
    loss = criterion(out)["loss"]
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        trap(model(torch.ones(1, 16)))
result(loss, model, **mines())
