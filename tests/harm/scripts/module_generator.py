# ruff: noqa
"""Modules whose forward is a generator, a coroutine, or yields into the training loop, left half way, closed and thrown
into. Compared: what arrives, loss bits."""

import asyncio, torch
from _result import net, result, sgd

seen = []


class Parts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, x):
        try:
            for part in x.split(2):
                seen.append((yield self.layers(part)))
        except KeyError:
            seen.append("thrown")
            yield x.sum()
        finally:
            seen.append("closed")


class Later(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    async def forward(self, x):
        await asyncio.sleep(0)
        return sum(part.square().mean() for part in self.inner(x))


model = Parts()
later, opt = Later(model), sgd(model)
for step in range(30):
    parts = model(torch.randn(8, 16))
    loss = next(parts).square().mean() + parts.send("sent").square().mean()
    if step % 3 == 0:
        parts.throw(KeyError)
    elif step % 3 == 1:
        parts.close()
    opt.zero_grad()
    loss.backward()
    opt.step()
    loss = asyncio.run(later(torch.randn(8, 16)))
    opt.zero_grad()
    loss.backward()
    opt.step()
result(loss, model, seen=len(seen), sent=seen.count("sent"), closed=seen.count("closed"))
