# ruff: noqa
"""An optimizer whose param_groups is a trapped list of trapped mappings, with a state that is one too. Compared: landmine
calls."""

import collections, torch
from _mines import mine_type, mines
from _result import fit, net, result

own = "__len__ __iter__ __getitem__ __contains__ __eq__ __repr__ __reversed__ __bool__".split()
Groups = mine_type("groups", list, only=own)
Group = mine_type("group", dict, only=[*own, "keys", "values", "items", "get", "copy"])
State = mine_type("state", collections.defaultdict, only=[*own, "keys", "values", "items", "get"])


class Own(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 1e-2})
        self.param_groups = Groups([Group(self.param_groups[0])])
        self.state = State(dict)

    @torch.no_grad()
    def step(self, closure=None):
        for group in list.__iter__(self.param_groups):
            for p in dict.__getitem__(group, "params"):
                p -= dict.__getitem__(group, "lr") * p.grad

    def zero_grad(self):
        model.zero_grad()


model = net()
loss = fit(model, Own(model.parameters()), 40)
result(loss, model, **mines())
