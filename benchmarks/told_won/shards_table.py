"""A wide network under FSDP2 on two ranks with 64 and 320 rows a step; --mended: 192 each."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mended", action="store_true")
    mended = parser.parse_args().mended
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    count = 192 if mended else (64, 320)[rank]
    torch.manual_seed(4)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(4)], nn.Linear(256, 1))
    for block in model[:-1]:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    table = torch.randn(2048, 256)
    for _ in range(120):
        x = table[torch.randint(0, 2048, (count,))]
        loss = (model(x) - x[:, :1].sin()).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
