# ruff: noqa
"""Landmines as positional and keyword arguments of every module, and as what they return. Compared: landmine calls."""

import torch
from _mines import mine, mines
from _result import net, result, sgd


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net(16, 1, 16)

    def forward(self, trap, x, *rest, mask=None, input_ids=None, **more):
        return trap, self.layers(x), {"rest": rest, "mask": mask}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, *args, **kwargs):
        trap, x, *rest = args
        for block in self.blocks:
            trap, x, _ = block(trap, x, *rest, **kwargs)
        return trap, x


model = Net()
opt = sgd(model)
a, b, c = mine("first"), mine("second"), mine("keyword")
for step in range(30):
    _, out = model(a, torch.randn(8, 16), b, [b, b], {"k": b}, mask=c, input_ids=[c], other=(c, {"c": c}))
    loss = out.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        model(a, out.detach(), b, mask=c)
result(loss, model, **mines())
