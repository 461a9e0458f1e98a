# ruff: noqa
"""Two networks against each other with three optimizers, one inside another's closure, one replaced, groups added, states
loaded, hooks of the script's own on all. Compared: hooks run, bits of the weights."""

import copy, torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from _result import net, result, sgd

ran = []
a, b = net(), net(1, 1)
first, second, third = (
    sgd(a),
    torch.optim.Adam(b.parameters(), lr=1e-3),
    torch.optim.RMSprop([torch.zeros(1, requires_grad=True)]),
)
handle = register_optimizer_step_pre_hook(lambda o, *r: ran.append(type(o).__name__))
second.register_step_post_hook(lambda *r: ran.append("post"))


def closure():
    first.zero_grad()
    loss = b(a(torch.randn(8, 16))).square().mean()
    loss.backward()
    first.step()
    return loss


for step in range(40):
    loss = second.step(closure)
    third.step()
    if step == 20:
        state = copy.deepcopy(first.state_dict())
        first = sgd(a, 1e-3)
        first.load_state_dict(state)
        second.add_param_group({"params": [torch.zeros(2, requires_grad=True)], "lr": 1e-2})
handle.remove()
result(loss, a, ran=len(ran), other=sum(float(p.sum()) for p in b.parameters()))
