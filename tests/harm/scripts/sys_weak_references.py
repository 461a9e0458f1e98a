# ruff: noqa
"""weakref.getweakrefcount of every object of a training: model, layers, weights, gradients, batch, loss, optimizer, loader,
closure. Compared: all of them."""

import weakref, torch
from torch.utils.data import DataLoader
from _result import net, result, sgd

seen = set()


def main():
    model = net()
    opt = sgd(model)
    loader = DataLoader(torch.randn(80, 16), batch_size=8)

    def closure():
        return None

    for epoch in range(3):
        for x in loader:
            out = model(x)
            loss = out.square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step(closure)
            objects = (
                model,
                *model,
                *model.parameters(),
                model[0].weight.grad,
                x,
                out,
                loss,
                opt,
                loader,
                loader.dataset,
                loader.sampler,
                closure,
            )
            seen.add(tuple(map(weakref.getweakrefcount, objects)))
    return loss, model


loss, model = main()
result(loss, model, kinds=len(seen), counts=sorted(seen)[-1])
