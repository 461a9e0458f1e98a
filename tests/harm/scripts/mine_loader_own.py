# ruff: noqa
"""A loader that is no DataLoader but quacks like one, with traps for all else, and a wrapper of a DataLoader whose
__getattr__ forwards and counts. Compared: landmine calls."""

import torch
from torch.utils.data import DataLoader
from _mines import mine_type, mines, note
from _result import one_step, result, sgd


class Wrapper:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        note(f"wrapper:{name}")
        return getattr(self.inner, name)

    def __len__(self):
        note("wrapper.__len__")
        return len(self.inner)

    def __iter__(self):
        return iter(self.inner)


def batches(self):
    for i in range(20):
        yield torch.full((8, 16), i / 20)


own = mine_type("own", named=("dataset", "sampler", "batch_size", "batch_sampler", "num_workers"), __iter__=batches)()
model = torch.nn.Linear(16, 1)
opt = sgd(model)
for loader in (own, Wrapper(DataLoader(torch.randn(160, 16), batch_size=8)), own):
    for x in loader:
        loss = one_step(model, opt, x)
result(loss, model, **mines())
