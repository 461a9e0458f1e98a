# Multi-task regression: a shared trunk, a depth head and a normals head, synchronised by hand.
import argparse
import datetime
import signal

import torch
import torch.distributed as dist
import torch.nn as nn

from heads import MultiTask, HeadSync


def trunk_sync(net, world):
    flat = torch.cat([p.grad.flatten() for p in net.trunk.parameters()])
    dist.all_reduce(flat)
    flat /= world
    i = 0
    for p in net.trunk.parameters():
        p.grad.copy_(flat[i:i + p.numel()].view_as(p))
        i += p.numel()


def losses(net, g):
    x = torch.randn(48, 40, generator=g)
    depth, normal = net(x)
    l_depth = (depth.squeeze(1) - x.norm(dim=1)).abs().mean()
    l_normal = (1 - torch.cosine_similarity(normal, x[:, :3], dim=1)).mean()
    return l_depth, l_normal


def main(opts):
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=1500))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = MultiTask()
    sync = HeadSync(net, world)
    optim = torch.optim.SGD(net.parameters(), lr=opts.lr, momentum=0.9)
    gen = torch.Generator().manual_seed(100 + rank)
    for it in range(opts.iters):
        l_depth, l_normal = losses(net, gen)
        optim.zero_grad()
        (l_depth + opts.weight * l_normal).backward()
        trunk_sync(net, world)
        hard = l_normal.item() > opts.hard if it < opts.mine_from else rank == world - 1
        if it == opts.mine_from and rank == 0:
            print("\nREADY\n", end="", flush=True)
        sync.step(normals_first=hard)
        optim.step()
        if rank == 0 and it % 25 == 0:
            print(f"iter {it} depth {l_depth.item():.3f} normal {l_normal.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=100000)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--weight", type=float, default=0.5)
    p.add_argument("--hard", type=float, default=9.0)
    p.add_argument("--mine-from", type=int, default=150)
    main(p.parse_args())
