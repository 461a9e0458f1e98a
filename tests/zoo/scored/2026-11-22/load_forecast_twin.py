"""Day-ahead load forecasting: dilated TCN on rolling windows of many meters."""
import time
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

config = SimpleNamespace(
    data=SimpleNamespace(meters=60, hours=24 * 400, context=336, horizon=24,
                         windows_per_epoch=768),
    model=SimpleNamespace(channels=48, levels=5, dropout=0.0),
    train=SimpleNamespace(epochs=10, batch_size=64, lr=2e-3, workers=2, seed=3),
)

_calendar = None


def build_calendar(hours):
    """Holiday and temperature covariates of the whole period."""
    rng = np.random.default_rng(0)
    temp = np.empty(hours, dtype=np.float32)
    level = 10.0
    for h in range(hours):
        level += rng.normal() * 0.3 - 0.01 * (level - 10.0)
        season = 10.0 * np.sin(2 * np.pi * h / 8760.0)
        daily = 4.0 * np.sin(2 * np.pi * (h % 24) / 24.0)
        temp[h] = level + season + daily
    hol = np.zeros(hours, dtype=np.float32)
    for d in rng.integers(0, hours // 24, 20):
        hol[d * 24:(d + 1) * 24] = 1.0
    hod = np.arange(hours) % 24
    return np.stack([temp / 20.0, hol, np.sin(2 * np.pi * hod / 24),
                     np.cos(2 * np.pi * hod / 24)]).astype(np.float32)


def init_worker(worker_id):
    global _calendar
    torch.set_num_threads(1)
    _calendar = build_calendar(config.data.hours)
    np.random.seed((torch.initial_seed() + worker_id) % 2 ** 32)


class MeterWindows(Dataset):
    def __init__(self, cfg, seed):
        self.cfg = cfg
        rng = np.random.default_rng(seed)
        t = np.arange(cfg.hours)
        phase = rng.uniform(0, 6.28, (cfg.meters, 1))
        amp = rng.uniform(0.5, 2.0, (cfg.meters, 1))
        self.load = (amp * np.sin(2 * np.pi * t / 24 + phase)
                     + 0.5 * amp * np.sin(2 * np.pi * t / 168 + phase)
                     + rng.normal(0, 0.2, (cfg.meters, cfg.hours))).astype(np.float32)

    def __len__(self):
        return self.cfg.windows_per_epoch

    def __getitem__(self, i):
        c = self.cfg
        meter = np.random.randint(c.meters)
        s = np.random.randint(c.hours - c.context - c.horizon)
        past = self.load[meter, s:s + c.context]
        cov = _calendar[:, s:s + c.context]
        future = self.load[meter, s + c.context:s + c.context + c.horizon]
        x = np.concatenate([past[None], cov])
        return torch.from_numpy(x), torch.from_numpy(future)


class TemporalBlock(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.conv = nn.Conv1d(c, c, 3, dilation=dilation)
        self.act = nn.GELU()
        self.mix = nn.Conv1d(c, c, 1)

    def forward(self, x):
        return x + self.mix(self.act(self.conv(self.pad(x))))


class TCN(nn.Module):
    def __init__(self, mcfg, horizon):
        super().__init__()
        self.inp = nn.Conv1d(5, mcfg.channels, 1)
        self.blocks = nn.Sequential(*[TemporalBlock(mcfg.channels, 2 ** i)
                                      for i in range(mcfg.levels)])
        self.head = nn.Linear(mcfg.channels, horizon)

    def forward(self, x):
        return self.head(self.blocks(self.inp(x))[..., -1])


def pinball(pred, target, q=0.5):
    err = target - pred
    return torch.maximum(q * err, (q - 1) * err).mean()


def main():
    tcfg = config.train
    torch.manual_seed(tcfg.seed)
    dataset = MeterWindows(config.data, tcfg.seed)
    loader = DataLoader(dataset, batch_size=tcfg.batch_size, num_workers=tcfg.workers,
                        worker_init_fn=init_worker, drop_last=True,
                        persistent_workers=True)
    model = TCN(config.model, config.data.horizon)
    optimizer = torch.optim.AdamW(model.parameters(), lr=tcfg.lr, fused=True)
    for epoch in range(tcfg.epochs):
        t0, losses = time.time(), []
        for x, y in loader:
            loss = pinball(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        print(f"epoch {epoch:02d} pinball {torch.stack(losses).mean():.4f} "
              f"({time.time() - t0:.2f}s)", flush=True)


if __name__ == "__main__":
    main()
