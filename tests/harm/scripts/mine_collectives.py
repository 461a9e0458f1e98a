# ruff: noqa
"""Landmines travel through collectives of objects, DDP forwards and comm hooks of a group of one. Compared: landmine
calls."""

import torch, torch.distributed as dist
from _mines import NAMED, mine, mine_type, mines
from _result import net, result, sgd

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
sent = Sent = mine_type("sent", named=NAMED, without=("__reduce_ex__", "__reduce__", "__getattribute__"))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()
        self.config = mine("config")

    def forward(self, x, trap=None):
        return self.layers(x)


def hook(state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


model = torch.nn.parallel.DistributedDataParallel(Net())
model.register_comm_hook(mine("state"), hook)
opt, trap = sgd(model), Sent()
for step in range(20):
    loss = model(torch.randn(8, 16), trap=None).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    held = [None]
    dist.all_gather_object(held, trap)
    dist.broadcast_object_list([trap], src=0)
    dist.all_reduce(torch.ones(2))
    dist.barrier()
dist.destroy_process_group()
result(loss, model, **mines())
