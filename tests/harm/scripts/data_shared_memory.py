# ruff: noqa
"""Batches in shared memory, pinned-like buffers that are reused, memory that is unmapped right after the step, and a storage
resized to nothing: whoever keeps or reads a batch later crashes or copies. Compared: exit code, loss bits."""

import mmap, torch
from torch.utils.data import DataLoader
from _result import net, one_step, result, sgd

model = net()
opt = sgd(model)
shared = torch.zeros(8, 16).share_memory_()
for step in range(40):
    shared.copy_(torch.randn(8, 16))
    loss = one_step(model, opt, shared)
for step in range(40):
    area = mmap.mmap(-1, 4096)
    x = torch.frombuffer(area, dtype=torch.float32, count=128).view(8, 16)
    x.copy_(torch.randn(8, 16))
    loss = one_step(model, opt, x)
    del x
    area.close()
for ids in DataLoader(
    torch.randint(0, 9, (80, 16)),
    batch_size=8,
    collate_fn=lambda r: {"input_ids": torch.stack(r), "attention_mask": torch.ones(8, 16).long()},
):
    for key in list(ids):
        x = ids[key].float()
        ids[key].untyped_storage().resize_(0)
        loss = one_step(model, opt, x)
    ids["input_ids"].untyped_storage().resize_(0)
emptied = []


def collate(rows):
    x = torch.stack(rows)
    emptied.append(x.clone())
    x.untyped_storage().resize_(0)
    return {"input_ids": x.long() if x.numel() == 0 else x}


for batch in DataLoader(torch.randn(80, 16), batch_size=8, collate_fn=collate):
    loss = one_step(model, opt, emptied[-1])
result(loss, model)
