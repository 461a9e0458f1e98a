# ruff: noqa
"""Learning rates, betas, batch sizes and seeds that are subclasses of float and int with traps, and tensors as rates; a
scheduler with traps on everything but step. Compared: landmine calls."""

import torch
from torch.utils.data import DataLoader
from _mines import mine_type, mines
from _result import net, one_step, result

only = "__eq__ __ne__ __hash__ __repr__ __str__ __bool__ __format__ __int__ __round__ __reduce_ex__ __complex__".split()
Rate, Count = mine_type("rate", float, only=only), mine_type("count", int, only=only)


class Decay:
    def __init__(self, opt):
        self.opt = opt

    def step(self):
        for group in self.opt.param_groups:
            group["lr"] = Rate(group["lr"] * 0.99)


model = net()
opt = torch.optim.AdamW(
    model.parameters(), lr=Rate(1e-2), betas=(Rate(0.8), 0.9), weight_decay=Rate(0.1), foreach=False
)
decay = Decay(opt)
for epoch in range(2):
    for x in DataLoader(torch.randn(160, 16), batch_size=Count(8), num_workers=Count(0)):
        loss = one_step(model, opt, x)
        decay.step()
result(loss, model, **mines())
