import numpy as np
import torch
from torch.utils.data import Dataset


def make_series(cfg):
    rng = np.random.default_rng(cfg.seed)
    t = np.arange(cfg.length)[None]
    period = rng.integers(12, 96, (cfg.series, 3, 1))
    amp = rng.random((cfg.series, 3, 1))
    x = (amp * np.sin(2 * np.pi * t[:, None] / period + rng.random((cfg.series, 3, 1)) * 6)).sum(1)
    x += 0.2 * rng.standard_normal(x.shape)
    return torch.from_numpy(x.astype(np.float32))


class Windows(Dataset):
    def __init__(self, cfg, series):
        self.series = series
        self.context, self.horizon = cfg.context, cfg.horizon
        self.per_series = cfg.length - cfg.context - cfg.horizon

    def __len__(self):
        return len(self.series) * self.per_series

    def __getitem__(self, i):
        s, start = divmod(i, self.per_series)
        mid = start + self.context
        return self.series[s, start:mid], self.series[s, mid:mid + self.horizon]


def collate(rows):
    past, future = zip(*rows)
    return {"past": torch.stack(past), "labels": torch.stack(future)}
