"""Forward-pipelined training over three stages with local losses per stage."""
import argparse
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--micro", type=int, default=4)
    p.add_argument("--micro-size", type=int, default=16)
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--tail-at", type=int, default=60)
    return p.parse_args()


class Stage:
    def __init__(self, rank, world, args):
        self.rank, self.world, self.args = rank, world, args
        self.net = nn.Sequential(nn.Linear(args.width, args.width), nn.GELU(),
                                 nn.Linear(args.width, args.width))
        self.probe = nn.Linear(args.width, 1)
        params = list(self.net.parameters()) + list(self.probe.parameters())
        self.opt = torch.optim.SGD(params, lr=1e-2)

    def receive(self):
        buf = torch.empty(self.args.micro_size, self.args.width)
        dist.recv(buf, src=self.rank - 1)
        return buf

    def emit(self, out):
        dist.send(out.detach().contiguous(), dst=self.rank + 1)

    def microbatches(self, step):
        n = self.args.micro
        if self.rank == 1 and step >= self.args.tail_at:
            n -= 1
        return range(n)

    def run(self, step):
        total = 0.0
        self.opt.zero_grad()
        for m in self.microbatches(step):
            if self.rank == 0:
                x = torch.randn(self.args.micro_size, self.args.width)
            else:
                x = self.receive()
            out = self.net(x)
            loss = (self.probe(out) - x.mean(1, keepdim=True)).pow(2).mean()
            loss.backward()
            if self.rank + 1 < self.world:
                self.emit(out)
            total += loss.item()
        self.opt.step()
        return total


def report(value, step, rank):
    t = torch.tensor([value])
    dist.all_reduce(t)
    if rank == 0 and step % 20 == 0:
        print(f"step {step} sum of stage losses {t.item():.4f}", flush=True)


def main():
    args = parse()
    signal.alarm(585)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=540))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    stage = Stage(rank, world, args)
    for step in range(args.steps):
        if step == args.tail_at and rank == 1:
            print("READY", flush=True)
        value = stage.run(step)
        report(value, step, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
