# ruff: noqa
"""Batches that are a dict of 50,000 entries, a list of 50,000, and lists nested 200 deep. Compared: CPU time, longest
step, loss bits."""

import torch
from torch.utils.data import DataLoader
from _result import one_step, result, sgd


def collate(rows):
    nested = torch.ones(1)
    for _ in range(200):
        nested = [nested, nested]
    if rows[0] % 2:
        return {i: torch.zeros(0) for i in range(50_000)} | {"x": torch.full((8, 16), rows[0] / 99)}
    return [*[None] * 50_000, nested, torch.full((8, 16), rows[0] / 99)]


model = torch.nn.Linear(16, 1)
opt = sgd(model)
for batch in DataLoader(range(0, 97), batch_size=3, collate_fn=collate):
    loss = one_step(model, opt, batch["x"] if isinstance(batch, dict) else batch[-1])
result(loss, model)
