# ruff: noqa
"""Each sample of the data set is a landmine that only the collate function opens. Compared: landmine calls."""

import torch
from torch.utils.data import DataLoader, Dataset
from _mines import SPECIAL, mine_type, mines
from _result import one_step, result, sgd

Sample = mine_type("sample", named=("shape", "size", "dim"))


class Samples(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, i):
        sample = object.__new__(Sample)
        object.__setattr__(sample, "row", torch.full((16,), i / 200))
        return sample


def collate(samples):
    return torch.stack([object.__getattribute__(s, "row") for s in samples])


model = torch.nn.Linear(16, 1)
opt = sgd(model)
for epoch in range(2):
    for x in DataLoader(Samples(), batch_size=8, collate_fn=collate, shuffle=True):
        loss = one_step(model, opt, x)
result(loss, model, **mines())
