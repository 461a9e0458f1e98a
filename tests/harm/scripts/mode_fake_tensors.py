# ruff: noqa
"""A training step under FakeTensorMode, as memory planners take it, before, between and after real steps. Compared: exit
code, loss bits, which tensors are fake."""

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from _result import net, one_step, result, sgd

model = net()
opt = sgd(model)
fakes = 0
for epoch in range(3):
    with FakeTensorMode():
        ghost = net(64, 2)
        own = torch.optim.Adam(ghost.parameters(), lr=1e-3)
        for _ in range(3):
            loss = ghost(torch.empty(8, 64)).square().mean()
            own.zero_grad()
            loss.backward()
            own.step()
            fakes += isinstance(loss, FakeTensor) + sum(isinstance(p.grad, FakeTensor) for p in ghost.parameters())
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes += isinstance(model(torch.empty(4, 16)), FakeTensor)
    for _ in range(11):
        loss = one_step(model, opt, torch.randn(8, 16))
result(loss, model, fakes=fakes)
