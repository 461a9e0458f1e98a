# ruff: noqa
"""Batches, inputs and outputs that are subclasses of tuple, list, dict, OrderedDict, str and int, with all methods trapped.
Compared: landmine calls."""

import collections, torch
from torch.utils.data import DataLoader
from _mines import SPECIAL, mine_type, mines
from _result import result, sgd

only = [n for n in SPECIAL if n not in ("__setattr__", "__getattribute__")]
Tuple, List = mine_type("tuple", tuple, only=only), mine_type("list", list, only=only)
own = [
    n
    for n in dir(dict)
    if n
    not in (
        "__new__",
        "__init__",
        "__class__",
        "__init_subclass__",
        "__getattribute__",
        "__setattr__",
        "__class_getitem__",
        "__doc__",
        "__subclasshook__",
        "__reduce__",
        "fromkeys",
    )
]
Dict = mine_type("dict", dict, only=own)
Ordered = mine_type("ordered", collections.OrderedDict, only=[n for n in own if n not in ("__setitem__", "update")])
Int = mine_type("int", int, only=only)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(16, 1)

    def forward(self, batch, x, **named):
        return Tuple((self.a(x), batch))


def collate(rows):
    made.append(torch.stack(rows))
    x, n = made[-1], Int(3)
    kinds = (
        Tuple((x, n)),
        List([x, n]),
        dict.__new__(Dict),
        Ordered(input_ids=x),
        (Tuple((x,)), List([x])),
        {"a": List([x]), "n": n},
    )
    if len(made) % len(kinds) == 2:
        dict.__setitem__(kinds[2], "x", x)
    return kinds[len(made) % len(kinds)]


made = []
model = Net()
opt = sgd(model)
for batch in DataLoader(torch.randn(320, 16), batch_size=8, collate_fn=collate):
    out = model(batch, made[-1], named=batch)
    loss = tuple.__getitem__(out, 0).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
result(loss, model, **mines())
