# ruff: noqa
"""A DataLoader subclass with landmines as attributes, with properties that are traps in place of torch's names, and a
__getattribute__ that counts. Compared: landmine calls."""

import torch
from torch.utils.data import DataLoader
from _mines import mine, mines, note
from _result import one_step, result, sgd


class Loader(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra, self.owner, self.transform = mine("extra"), mine("owner"), [mine("transform")]

    def __getattribute__(self, name):
        note(f"loader:{name}")
        return super().__getattribute__(name)

    def __len__(self):
        note("loader.__len__")
        return super().__len__()

    def __eq__(self, other):
        note("loader.__eq__")
        return self is other

    def __hash__(self):
        note("loader.__hash__")
        return 1

    def __repr__(self):
        note("loader.__repr__")
        return "loader"


model = torch.nn.Linear(16, 1)
opt = sgd(model)
loader = Loader(torch.randn(160, 16), batch_size=8, generator=torch.Generator().manual_seed(1))
for epoch in range(3):
    for x in loader:
        loss = one_step(model, opt, x)
result(loss, model, **mines())
