# ruff: noqa
"""torch.set_default_device("meta") and set_default_dtype in mid-training, then a model under torch.device("meta"): any
tensor that somebody else makes is of that kind. Compared: exit code, loss bits."""

import torch
from torch.utils.data import DataLoader
from _result import net, one_step, result, sgd

model = net()
opt = sgd(model)
rows = list(torch.randn(80, 16))
for device, dtype in ((None, torch.float32), ("meta", torch.float64), ("cpu", torch.float16)):
    torch.set_default_device(device)
    torch.set_default_dtype(dtype)
    for i in range(0, 80, 8):
        loss = one_step(model, opt, torch.stack(rows[i : i + 8]))
    if device != "meta":  # torch's own loaders cannot draw their seed there
        for x in DataLoader(rows, batch_size=8):
            loss = one_step(model, opt, x)
    with torch.device("meta"):
        ghost = torch.nn.Linear(16, 16)
        ghost(torch.ones(8, 16))
torch.set_default_device(None)
torch.set_default_dtype(torch.float32)
result(loss, model, ghost=ghost.weight.device.type)
