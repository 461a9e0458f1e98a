# ruff: noqa
"""sys.getrefcount of model, layers, weights, batch, output, loss, optimizer and loader, in steps and afterwards. Compared:
all of them."""

import sys, torch
from torch.utils.data import DataLoader
from _result import net, result, sgd

count, seen = sys.getrefcount, []


def main():
    model = net()
    opt = sgd(model)
    loader = DataLoader(torch.randn(80, 16), batch_size=8)
    weight = model[0].weight
    for epoch in range(3):
        for x in loader:
            out = model(x)
            loss = out.square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen.append(
                tuple(
                    map(
                        count,
                        (
                            model,
                            model[0],
                            weight,
                            weight.grad,
                            x,
                            out,
                            loss,
                            opt,
                            loader,
                            type(model),
                            type(opt),
                            opt.param_groups,
                        ),
                    )
                )
            )
    del x, out
    seen.append(tuple(map(count, (model, model[0], weight, loss, opt, loader))))
    return loss, model


loss, model = main()
result(loss, model, kinds=len(set(seen)), steps=seen[-2], after=seen[-1])
