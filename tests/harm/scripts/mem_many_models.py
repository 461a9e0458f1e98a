# ruff: noqa
"""1,000 models, optimizers and loaders one after the other, kept alive. Compared: CPU time, peak memory."""

import torch
from torch.utils.data import DataLoader
from _result import one_step, result, sgd

data, kept = torch.randn(16, 16), []
for _ in range(1000):
    model = torch.nn.Linear(16, 1)
    opt, loader = sgd(model), DataLoader(data, batch_size=8)
    for x in loader:
        loss = one_step(model, opt, x)
    kept.append((model, opt, loader))
result(loss, model)
