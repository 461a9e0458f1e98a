# ruff: noqa
"""The batch is a landmine; and so is each of a list, a tuple and a dict of batches. Compared: landmine calls."""

import torch
from torch.utils.data import DataLoader
from _mines import mine, mines
from _result import one_step, result, sgd

model = torch.nn.Linear(16, 1)
opt = sgd(model)
made = []


def collate(rows):
    made.append(torch.stack(rows))
    trap = mine("batch")
    return (trap, [trap, trap], (trap,), {"x": trap, "input_ids": trap, "attention_mask": trap})[len(made) % 4]


for batch in DataLoader(torch.randn(320, 16), batch_size=8, collate_fn=collate):
    loss = one_step(model, opt, made[-1])
for batch in DataLoader(torch.randn(32, 16), batch_size=None, collate_fn=lambda row: mine("single")):
    loss = one_step(model, opt, made[-1])
result(loss, model, **mines())
