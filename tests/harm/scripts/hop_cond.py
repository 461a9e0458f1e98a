# ruff: noqa
"""Higher-order operators (cond, while_loop), eager, between and inside steps. Compared: exit code, loss bits."""

import torch
from torch._higher_order_ops.while_loop import while_loop
from _result import net, one_step, result, sgd

model = net()
opt = sgd(model)
for step in range(14):
    loss = one_step(model, opt, torch.randn(8, 16))
    if step in (5, 11, 12):
        with torch.no_grad():
            out = torch.cond(loss > 0, lambda v: v + 1, lambda v: v - 1, (loss.detach(),))
            turns = while_loop(lambda i: i < 5, lambda i: (i + 1,), (torch.zeros(()),))
result(loss, model, out=float(out), turns=float(turns[0]))
