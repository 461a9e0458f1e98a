"""N-BEATS style forecaster for hourly load curves, data parallel."""
from dataclasses import dataclass, field
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Config:
    lookback: int = 168
    horizon: int = 24
    stacks: int = 8
    blocks_per_stack: int = 3
    hidden: int = 160
    fc_layers: int = 4
    theta: int = 32
    batch_size: int = 128
    iterations: int = 220
    lr: float = 1e-3
    seed: int = 2023
    log_every: int = 40
    ddp: dict = field(default_factory=lambda: {"bucket_cap_mb": 0.05, "gradient_as_bucket_view": True})


class LoadCurves(Dataset):
    def __init__(self, cfg, n_series=64, length=1500):
        rng = np.random.default_rng(cfg.seed)
        t = np.arange(length)[None]
        day = np.sin(2 * np.pi * (t / 24 + rng.random((n_series, 1))))
        week = np.sin(2 * np.pi * (t / 168 + rng.random((n_series, 1))))
        noise = rng.normal(0, 0.2, (n_series, length)).cumsum(1) * 0.05
        self.values = torch.from_numpy((day + 0.5 * week + noise).astype(np.float32))
        self.cfg = cfg
        self.per_series = length - cfg.lookback - cfg.horizon

    def __len__(self):
        return self.values.shape[0] * self.per_series

    def __getitem__(self, i):
        s, o = divmod(i, self.per_series)
        mid = o + self.cfg.lookback
        return self.values[s, o:mid], self.values[s, mid:mid + self.cfg.horizon]


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        layers, d = [], cfg.lookback
        for _ in range(cfg.fc_layers):
            layers += [nn.Linear(d, cfg.hidden), nn.ReLU()]
            d = cfg.hidden
        self.trunk = nn.Sequential(*layers)
        self.theta_b = nn.Linear(d, cfg.theta, bias=False)
        self.theta_f = nn.Linear(d, cfg.theta, bias=False)
        self.basis_b = nn.Linear(cfg.theta, cfg.lookback)
        self.basis_f = nn.Linear(cfg.theta, cfg.horizon)

    def forward(self, x):
        h = self.trunk(x)
        return self.basis_b(self.theta_b(h)), self.basis_f(self.theta_f(h))


class NBeats(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        n = cfg.stacks * cfg.blocks_per_stack
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(n))
        self.level = nn.Linear(cfg.lookback, cfg.horizon)

    def forward(self, x):
        forecast = self.level(x)
        residual = x
        for block in self.blocks[:-1]:
            back, fore = block(residual)
            residual = residual - back
            forecast = forecast + fore
        last = self.blocks[-1]
        back, fore = last(residual)
        return forecast + fore, residual - back


def endless(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def train(cfg):
    dist.init_process_group(backend="gloo")
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    rank = dist.get_rank()

    data = LoadCurves(cfg)
    sampler = DistributedSampler(data, shuffle=True, seed=cfg.seed)
    loader = DataLoader(data, batch_size=cfg.batch_size, sampler=sampler, drop_last=True)

    model = DDP(NBeats(cfg), **cfg.ddp)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.iterations)
    stream = endless(loader, sampler)
    running = torch.zeros(())
    tic = time.perf_counter()
    for it in range(1, cfg.iterations + 1):
        x, y = next(stream)
        forecast, residual = model(x)
        loss = nn.functional.smooth_l1_loss(forecast, y) + 0.01 * residual.pow(2).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        running += loss.detach()
        if it % cfg.log_every == 0:
            if rank == 0:
                print(f"it {it:4d}  loss {running.item() / cfg.log_every:.4f}  {time.perf_counter() - tic:.1f}s", flush=True)
            running.zero_()
    dist.destroy_process_group()


if __name__ == "__main__":
    train(Config())
