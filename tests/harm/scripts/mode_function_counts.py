# ruff: noqa
"""A TorchFunctionMode of the script's counts functions around everything, and one that is entered in each step. Compared:
the counts."""

import collections, torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader
from _result import one_step, result

counts = collections.Counter()


class Count(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        counts[getattr(func, "__name__", str(func))] += 1
        return func(*args, **(kwargs or {}))


model = torch.nn.Sequential(torch.nn.Embedding(64, 8), torch.nn.Flatten(), torch.nn.Linear(96, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.randint(0, 64, (240, 12))
with Count():
    for x in DataLoader(data, batch_size=8):
        loss = one_step(model, opt, x)
for batch in DataLoader(
    data, batch_size=8, collate_fn=lambda r: {"input_ids": torch.stack(r), "attention_mask": torch.ones(8, 12)}
):
    with Count():
        loss = one_step(model, opt, batch["input_ids"])
result(loss, model, functions=sum(counts.values()), names=len(counts))
