# ruff: noqa
"""Batches, module attributes, optimizer groups and loader attributes under keys that are subclasses of str with trapped
comparison and hash: a look-up by the same text compares them. Compared: landmine calls."""

import torch
from torch.utils.data import DataLoader
from _mines import mines, note
from _result import net, result, sgd


class Key(str):
    def __eq__(self, other):
        note("key.__eq__")
        return str.__eq__(self, other)

    def __hash__(self):
        note("key.__hash__")
        return str.__hash__(self)

    def __repr__(self):
        note("key.__repr__")
        return str.__repr__(self)


names = "input_ids attention_mask x tokens mask labels src ids padding_mask".split()
keys = [Key(n) for n in names]


def collate(rows):
    x = torch.stack(rows)
    return {k: x for k in keys}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()
        self.__dict__.update({Key(n): 1 for n in ("logger", "comm_hook", "keeps_local", "heads", "num_layers")})

    def forward(self, batch, **named):
        return self.layers(next(iter(batch.values())))


model = Net()
opt = sgd(model)
opt.param_groups[0].update({Key(n): True for n in ("capturable", "amsgrad", "eps", "betas")})
for batch in DataLoader(torch.randn(320, 16), batch_size=8, collate_fn=collate):
    loss = model(batch).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
result(loss, model, **mines())
