import numpy as np
import torch


class Windows:
    """Hourly demand series with daily and weekly seasons; windows are cut by index."""

    def __init__(self, c, seed):
        rng = np.random.default_rng(seed)
        t = np.arange(c.length)
        amp = rng.uniform(0.5, 1.5, (c.series, 2))
        shift = rng.uniform(0, 24, (c.series, 1))
        x = amp[:, :1] * np.sin(2 * np.pi * (t + shift) / 24) + amp[:, 1:] * np.sin(2 * np.pi * (t + shift) / 168)
        x = x + 0.2 * rng.standard_normal(x.shape)
        self.values = torch.from_numpy(x.astype(np.float32))
        self.c = c
        self.gen = torch.Generator().manual_seed(seed)
        self.offsets = torch.arange(c.window + c.horizon)

    def __iter__(self):
        c = self.c
        while True:
            s = torch.randint(c.series, (c.batch, 1), generator=self.gen)
            at = torch.randint(c.length - c.window - c.horizon, (c.batch, 1), generator=self.gen)
            cut = self.values[s, at + self.offsets]
            yield cut[:, None, : c.window].contiguous(), cut[:, c.window:].contiguous()
