# ruff: noqa
"""DDP and collectives of two ranks by fork: all_reduce with async work, gather, broadcast, barrier, no_sync, a monitored
barrier and an uneven input under join. Compared: loss bits of both, exit codes."""

import os, tempfile, torch, torch.distributed as dist
from _result import net, result, sgd


def work(rank, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(net())
    opt = sgd(model)
    torch.manual_seed(rank + 1)
    for step in range(20):
        loss = model(torch.randn(8, 16)).square().mean()
        if step % 4 == 1:
            with model.no_sync():
                loss.backward()
            loss = model(torch.randn(8, 16)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        t = torch.ones(3) * rank
        handle = dist.all_reduce(t, async_op=True)
        handle.wait()
        dist.broadcast(t, 1)
    with model.join():
        for _ in range(3 + rank):
            loss = model(torch.randn(8, 16)).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    held = [None, None]
    dist.all_gather_object(held, {"rank": rank, "t": t})
    dist.monitored_barrier()
    dist.destroy_process_group()
    if rank == 0:
        result(loss, model.module, t=float(t.sum()), held=len(held), threads="any", descriptors="any", draws="any")


path = os.path.join(tempfile.mkdtemp(), "store")
pids = []
for rank in range(2):
    pid = os.fork()
    if pid == 0:
        try:
            work(rank, path)
            os._exit(0)
        finally:
            os._exit(1)
    pids.append(pid)
print("codes", [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
