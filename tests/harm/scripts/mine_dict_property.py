# ruff: noqa
"""Objects whose class makes __dict__, __class__, __module__ and __slots__ traps: as a batch, input, module attribute, data
set, sampler and closure. __class__ claims to be a tensor, a DataLoader, a list. Compared: landmine calls."""

import torch
from torch.utils.data import DataLoader
from _mines import mines, note
from _result import net, result, sgd


def lying(kind):
    class Lie:
        @property
        def __dict__(self):
            note("__dict__")
            return {"x": 1}

        @property
        def __class__(self):
            note("__class__")
            return kind

        def __iter__(self):
            return iter(range(160))

        def __len__(self):
            return 160

        def __getitem__(self, i):
            return torch.full((16,), i / 160)

        def __call__(self):
            return None

    return Lie()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()
        self.lie = lying(dict)

    def forward(self, batch, x):
        return self.layers(x)


made, lies = [], [lying(kind) for kind in (torch.Tensor, list, tuple, dict, DataLoader, torch.nn.Module)]


def collate(rows):
    made.append(torch.stack(rows))
    return lies[len(made) % len(lies)]


model = Net()
opt = sgd(model)
loader = DataLoader(lying(object), batch_size=8, sampler=lying(object), collate_fn=collate)
for epoch in range(2):
    for batch in loader:
        loss = model(batch, made[-1]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step(lies[-1])
result(loss, model, **mines())
