import argparse
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from tracker import Tracker


class ConvMixer(nn.Module):
    def __init__(self, dim=24, depth=3, classes=8):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 4, 4)
        self.mix = nn.ModuleList(
            nn.Sequential(nn.Conv2d(dim, dim, 3, groups=dim, padding=1), nn.GELU(),
                          nn.Conv2d(dim, dim, 1)) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        h = self.stem(x)
        for m in self.mix:
            h = h + m(h)
        return self.head(h.mean((2, 3)))


class Loop:
    def __init__(self, args, tracker):
        self.args, self.tracker = args, tracker
        self.world = dist.get_world_size()
        self.net = ConvMixer()
        self.opt = torch.optim.SGD(self.net.parameters(), 0.02)

    def reduce(self):
        handles = [dist.all_reduce(p.grad, async_op=True) for p in self.net.parameters()]
        for h in handles:
            h.wait()
        for p in self.net.parameters():
            p.grad /= self.world

    def step(self):
        x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 8, (8,))
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.reduce()
        self.opt.step()
        return loss.item()

    def run(self):
        for step in range(1, self.args.steps + 1):
            value = self.step()
            self.tracker.add("loss", value)
            if step % self.args.flush_every == 0:
                self.tracker.flush()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=4000)
    ap.add_argument("--flush-every", type=int, default=50)
    args = ap.parse_args()
    signal.alarm(575)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=9))
    torch.manual_seed(0)
    tracker = Tracker(remote=dist.get_rank() == 1)
    Loop(args, tracker).run()
    tracker.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
