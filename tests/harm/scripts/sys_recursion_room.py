# ruff: noqa
"""How many levels of recursion are left inside forward, collate, the optimizer, a hook, backward and a data set. Compared:
whether the room of a script alone, less eight, is there in each."""

import sys, torch
from torch.utils.data import DataLoader
from _result import net, result, sgd

room, BASE = (
    {},
    {"row": 985, "collate": 985, "forward": 985, "hook": 980, "step": 980, "step_hook": 980, "backward": 975},
)


def levels():
    try:
        return 1 + levels()
    except RecursionError:
        return 1


def look(place):
    found = levels()
    room[place] = min(found, room.get(place, found))


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
        if i == 0:
            look("row")
        return list.__getitem__(self, i)


def collate(rows):
    look("collate")
    return torch.stack(rows)


model = Net()
opt = Own(model.parameters(), lr=1e-2)
model.layers.register_forward_hook(lambda *a: look("hook"))
opt.register_step_post_hook(lambda *a: look("step_hook"))
for epoch in range(3):
    for x in DataLoader(Rows(torch.randn(80, 16)), batch_size=8, collate_fn=collate):
        out = model(x)
        out.register_hook(lambda g: look("backward"))
        loss = out.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
print("levels at least", {k: room[k] // 8 * 8 >= BASE[k] - 16 for k in BASE})
result(loss, model, short=[k for k in BASE if room[k] < BASE[k] - 16])
