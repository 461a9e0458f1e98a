# ruff: noqa
"""An optimizer that looks at its closure: its type, signature and attributes. Compared: exit code, bits of the weights."""

import inspect, torch
from _result import net, result


class Closure:
    scale = 0.5

    def __init__(self, model):
        self.model = model

    def __call__(self, backward=False):
        loss = self.model(torch.randn(8, 16)).square().mean()
        if backward:
            self.model.zero_grad()
            loss.backward()
        return loss


class Search(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure):
        assert type(closure) is Closure and list(inspect.signature(closure).parameters) == ["backward"]
        with torch.enable_grad():
            loss = closure(backward=True)
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p -= 0.01 * closure.scale * p.grad
        return loss


model = net()
opt, closure = Search(model.parameters()), Closure(model)
for _ in range(40):
    loss = opt.step(closure)
result(loss, model)
