"""Particle-jet tagger: one wide layer, data parallel over two processes."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn


def build(width):
    return nn.Sequential(nn.Linear(512, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 512),
                         nn.GELU(), nn.Linear(512, 5))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=120)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    model = nn.parallel.DistributedDataParallel(build(3072))
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    ce = nn.CrossEntropyLoss()
    g = torch.Generator().manual_seed(50 + rank)
    for step in range(args.steps):
        x = torch.randn(64, 512, generator=g)
        y = x[:, :5].argmax(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = ce(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if rank == 0 and step % 20 == 0:
            print(step, loss.item(), flush=True)
    dist.barrier()
    time.sleep(0.5)  # let the gloo threads finish before they are torn down
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
