"""Hourly solar output from weather windows, data parallel."""
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class TCN(nn.Module):
    def __init__(self, channels=6, width=32):
        super().__init__()
        layers = []
        c = channels
        for dilation in (1, 2, 4):
            layers += [nn.Conv1d(c, width, 3, padding=dilation, dilation=dilation), nn.ReLU()]
            c = width
        self.net = nn.Sequential(*layers)
        self.out = nn.Linear(width, 24)

    def forward(self, x):
        return self.out(self.net(x)[:, :, -1])


def make_data(n=4096, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, 72, generator=g).cumsum(-1) / 8
    y = x[:, 0, -24:].clamp_min(0) + 0.1 * torch.randn(n, 24, generator=g)
    return TensorDataset(x, y)


def evaluate(model, data):
    with torch.no_grad():
        x, y = data[:256]
        total = nn.functional.l1_loss(model(x), y)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return total.item() / dist.get_world_size()


def main():
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = make_data()
    valid = make_data(256, seed=9)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(TCN())
    opt = torch.optim.Adam(model.parameters(), 3e-4)
    begin = time.monotonic()
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        mae = evaluate(model, valid)
        if rank == 0:
            print(f"epoch {epoch} mse {loss.item():.4f} val mae {mae:.4f}", flush=True)
            if epoch == 1:
                print("\nREADY\n", end="", flush=True)
        epoch += 1
        done = torch.tensor(float(time.monotonic() - begin >= 540))
        dist.all_reduce(done)
        if done > 0:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
