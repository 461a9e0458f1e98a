# ruff: noqa
"""The training runs in an event loop beside other tasks, batches come from an async generator, a step in to_thread and in
an executor. Compared: order of events, loss bits, that the loop closes without pending work."""

import asyncio, torch
from _result import net, one_step, result, sgd

model = net()
opt, ticks = sgd(model), 0


async def batches(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield torch.randn(8, 16)


async def tick():
    global ticks
    while True:
        ticks += 1
        await asyncio.sleep(0)


async def main():
    other = asyncio.create_task(tick())
    async for x in batches(60):
        loss = one_step(model, opt, x)
    for _ in range(10):
        loss = await asyncio.to_thread(one_step, model, opt, torch.randn(8, 16))
    other.cancel()
    return loss, len(asyncio.all_tasks())


loss, tasks = asyncio.run(main(), debug=False)
result(loss, model, tasks=tasks, ticked=ticks > 50, threads="any")
