# ruff: noqa
"""Modules whose forward has keywords named as a wrapper might name its own: session, module, original, agent, self_,
args, kwargs, hook, fn. Compared: exit code, loss bits."""

import torch
from _result import result, sgd


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.items = torch.nn.Embedding(50, 8)

    def forward(self, *, session, module, original, agent, self_, args, kwargs, hook, fn, input, name):
        return self.items(session) * (module + original + agent + self_ + args + kwargs + hook + fn + input + name)


model = Net()
opt = sgd(model)
names = "module original agent self_ args kwargs hook fn input name".split()
for _ in range(40):
    loss = model(session=torch.randint(0, 50, (8,)), **{n: i / 10 for i, n in enumerate(names)}).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
result(loss, model)
