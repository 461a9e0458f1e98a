# ruff: noqa
"""With the collector off, models, batches, losses, optimizers, loaders and iterators must be gone as soon as the script
drops them. Compared: what is still alive after each of 30 trainings."""

import gc, weakref, torch
from torch.utils.data import DataLoader
from _result import one_step, result, sgd

gc.collect()
gc.disable()
alive = []


def train():
    model = torch.nn.Linear(16, 1)
    opt = sgd(model)
    loader = DataLoader(torch.randn(40, 16), batch_size=8)
    iterator = iter(loader)
    for x in iterator:
        loss = one_step(model, opt, x)
    refs = [weakref.ref(o) for o in (model, model.weight, loader, iterator, x, loss, opt)]
    return loss.item(), refs


for n in range(30):
    loss, refs = train()
    alive.append([i for i, r in enumerate(refs) if r() is not None])
result(loss, kinds=len(set(map(str, alive))), alive=alive[-1])
