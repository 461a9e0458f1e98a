# ruff: noqa
"""Epochs of 11 batches, so that the workers of the second epoch are forked right after step 11. The workers say how many
dispatch modes and function modes they were born with. Compared: that number, loss bits, CPU time."""

import torch
from torch.utils.data import DataLoader, Dataset
from _result import net, one_step, result, sgd, settle


class Rows(Dataset):
    def __len__(self):
        return 88

    def __getitem__(self, i):
        modes = torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
        x = torch.full((16,), i / 88)
        for _ in range(100):
            x = x * 1.0001
        return x, modes


model = net()
opt = sgd(model)
loader, modes = DataLoader(Rows(), batch_size=8, num_workers=1), 0
for epoch in range(3):
    for x, m in loader:
        loss = one_step(model, opt, x)
        modes += int(m.sum())
settle()
result(loss, model, modes=modes)
