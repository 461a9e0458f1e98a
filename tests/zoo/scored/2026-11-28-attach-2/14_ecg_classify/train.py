import argparse
import datetime as dt
import signal

import torch
import torch.distributed as dist
import torch.nn as nn

from beats import BeatSource, CorruptBeat
from recovery import Recovery

CLASSES = 5


def build():
    return nn.Sequential(
        nn.Conv1d(1, 16, 9, 2, 4), nn.BatchNorm1d(16), nn.ReLU(),
        nn.Conv1d(16, 32, 9, 2, 4), nn.BatchNorm1d(32), nn.ReLU(),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(128, CLASSES),
    )


def sync_grads(net):
    for p in net.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def train(args):
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = build()
    opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    source = BeatSource(rank, bad_after=args.bad_after if rank == args.bad_rank else None)
    recovery = Recovery(net)
    for step in range(args.steps):
        try:
            x, y = source.draw(24)
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
        except CorruptBeat as err:
            recovery.rewind(step, err)
        sync_grads(net)
        opt.step()
        if step % 30 == 0:
            recovery.remember(net)
            if rank == 0:
                print(f"{step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=10 ** 6)
    ap.add_argument("--bad-after", type=int, default=130)
    ap.add_argument("--bad-rank", type=int, default=2)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=dt.timedelta(minutes=30))
    train(args)
