# ruff: noqa
"""A Function of one's own that runs a backward inside its backward (reentrant), calls a module there, and activation
checkpointing of both kinds. Compared: how often forwards ran, loss bits."""

import torch
from torch.utils.checkpoint import checkpoint
from _result import net, result, sgd

ran = {"inner": 0, "outer": 0}


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net(16, 1, 16)

    def forward(self, x):
        ran["inner"] += 1
        return self.layers(x)


class Nested(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return inner(x)

    @staticmethod
    def backward(ctx, gradient):
        ran["outer"] += 1
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            inner(x).backward(gradient)
        return x.grad


inner, head = Inner(), torch.nn.Linear(16, 1)
opt = sgd(torch.nn.ModuleList([inner, head]))
for step in range(30):
    x = torch.randn(8, 16).requires_grad_()
    y = Nested.apply(x) + checkpoint(inner, x, use_reentrant=step % 2 == 0)
    loss = head(y).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
result(loss, head, **ran)
