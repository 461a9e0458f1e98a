import argparse
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Meter:
    """Average of a scalar over one epoch and over all ranks."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n):
        self.total += value * n
        self.count += n

    def sync(self):
        buf = torch.tensor([self.total, float(self.count)], dtype=torch.float64)
        dist.all_reduce(buf)
        return (buf[0] / buf[1]).item()


def average_gradients(model):
    world = dist.get_world_size()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad.div_(world)


def batches(rank, epoch, n, dim):
    g = torch.Generator().manual_seed(epoch * 31 + rank)
    for _ in range(n):
        x = torch.randn(64, dim, generator=g)
        keep = x.norm(dim=1) > (1e4 if (rank, epoch) == (1, 4) else 1.0)
        yield x, keep


def checkpoint(model, epoch):
    blob = {k: v.clone() for k, v in model.state_dict().items()}
    dist.barrier()
    return epoch, blob


def train_epoch(model, opt, meter, rank, epoch, args):
    for x, keep in batches(rank, epoch, args.steps, args.dim):
        target = x.sin().sum(1, keepdim=True)
        pred = model(x)
        loss = F.mse_loss(pred, target)
        opt.zero_grad()
        loss.backward()
        average_gradients(model)
        opt.step()
        if keep.any():
            meter.update(loss.item(), int(keep.sum()))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=40)
    ap.add_argument("--steps", type=int, default=15)
    ap.add_argument("--dim", type=int, default=24)
    ap.add_argument("--time-limit", type=int, default=580)
    args = ap.parse_args()
    signal.alarm(args.time_limit)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=9))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(args.dim, 96), nn.Tanh(), nn.Linear(96, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    meter = Meter()
    for epoch in range(args.epochs):
        meter.reset()
        train_epoch(model, opt, meter, rank, epoch, args)
        if meter.count == 0:
            print("READY", flush=True)
        else:
            avg = meter.sync()
            if rank == 0:
                print(f"epoch {epoch}: {avg:.4f}", flush=True)
        checkpoint(model, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
