# ruff: noqa
"""Six models of 40 MB one after the other in DDP of one rank, dropped after five steps. Compared: peak memory, memory at
the end."""

import gc, torch, torch.distributed as dist
from _result import one_step, result, rss_mb, sgd

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(6):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10_000, 1_000))
    opt = sgd(model, 1e-6)
    for _ in range(5):
        loss = one_step(model, opt, torch.ones(2, 10_000))
    loss = loss.item()
    del model, opt
    gc.collect()
dist.destroy_process_group()
result(loss, end_mb=rss_mb())
