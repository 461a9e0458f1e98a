# ruff: noqa
"""gc.get_referrers of model, optimizer, batch and weights: how many, of which types and in whose modules. Compared: all."""

import collections, gc, torch
from torch.utils.data import DataLoader
from _result import net, one_step, result, sgd


def main():
    model = net()
    opt = sgd(model)
    for x in DataLoader(torch.randn(240, 16), batch_size=8):
        loss = one_step(model, opt, x)
    found = collections.Counter()
    for name, value in (
        ("model", model),
        ("weight", model[0].weight),
        ("opt", opt),
        ("x", x),
        ("groups", opt.param_groups),
    ):
        for other in gc.get_referrers(value):
            found[f"{name}<-{type(other).__module__}.{type(other).__name__}"] += 1
    return loss, model, found


loss, model, found = main()
result(loss, model, referrers=sum(found.values()), kinds=sorted(found.items()))
