# ruff: noqa
"""An optimizer class with traps: attributes, comparison, hash, truth, text, length; and landmines in its groups and
state. Compared: landmine calls."""

import torch
from _mines import mine, mine_type, mines, note
from _result import fit, net, result

only = "__len__ __iter__ __bool__ __eq__ __ne__ __hash__ __repr__ __str__ __reduce_ex__ __dir__ __contains__".split()


class Opt(mine_type("optimizer", torch.optim.SGD, only=only)):
    def __getattribute__(self, name):
        note(f"optimizer:{name}")
        return super().__getattribute__(name)

    def __len__(self):
        note("optimizer.__len__")
        return 0

    @property
    def fused(self):
        note("optimizer.fused")
        return False


model = net()
opt = Opt(model.parameters(), lr=1e-2)
opt.param_groups[0]["owner"] = mine("owner")
opt.state["schedule"] = mine("schedule")
opt.note = mine("note")
loss = fit(model, opt, 40)
result(loss, model, **mines())
