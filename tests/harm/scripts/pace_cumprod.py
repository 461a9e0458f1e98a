# ruff: noqa
"""cumprod along 12,000 entries: under a dispatch mode its backward takes a quadratic formula. Compared: longest step."""

import torch
from _result import result, step_time

model = torch.nn.Linear(4, 12_000)
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(40):
    with step_time():
        gain = 1 - 1e-4 * torch.sigmoid(model(torch.randn(2, 4)))
        loss = torch.cumprod(gain, 1).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
result(loss, model)
