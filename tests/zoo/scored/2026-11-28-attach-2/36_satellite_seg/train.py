import argparse
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Busy(Exception):
    pass


class TileServer:
    """Stands in for the tile cache; under load it answers 429 a few times before each tile."""

    def __init__(self, seed, busy_after=None, refusals=3):
        self.g = torch.Generator().manual_seed(seed)
        self.busy_after, self.refusals = busy_after, refusals
        self.tries = {}

    def get(self, key):
        if self.busy_after is not None and key >= self.busy_after:
            n = self.tries[key] = self.tries.get(key, 0) + 1
            if n <= self.refusals:
                raise Busy(key)
            del self.tries[key]
        return torch.randn(4, 24, 24, generator=self.g)


def fetch_with_retry(server, key, first=0.03):
    wait = first
    while True:
        try:
            return server.get(key)
        except Busy:
            time.sleep(wait)
            wait *= 2


def segnet(c=16):
    return nn.Sequential(
        nn.Conv2d(4, c, 3, padding=1), nn.ReLU(),
        nn.Conv2d(c, c, 3, padding=2, dilation=2), nn.ReLU(),
        nn.Conv2d(c, 3, 1),
    )


class Batches:
    def __init__(self, server, size):
        self.server, self.size = server, size
        self.n = 0

    def __iter__(self):
        return self

    def __next__(self):
        tiles = []
        for i in range(self.size):
            tiles.append(fetch_with_retry(self.server, self.n * self.size + i))
        self.n += 1
        x = torch.stack(tiles)
        return x, (x[:, 3] - x[:, 0] > 0).long() + (x[:, 1] > 1).long()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=6)
    ap.add_argument("--busy-after", type=int, default=500)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    server = TileServer(rank, busy_after=args.busy_after if rank == 1 else None)
    model = DDP(segnet())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    for step, (x, y) in enumerate(Batches(server, args.batch)):
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} ce {loss.item():.3f}", flush=True)
        if rank == 1 and step == args.busy_after // args.batch + 2:
            print("\nREADY\n", end="", flush=True)


if __name__ == "__main__":
    main()
