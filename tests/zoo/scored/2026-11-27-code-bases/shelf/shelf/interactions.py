import numpy as np
import torch


class Interactions:
    """Synthetic purchase log: each user has a taste cluster; popularity is skewed."""

    def __init__(self, s):
        rng = np.random.default_rng(s.seed)
        taste = rng.integers(0, 50, s.users)
        span = s.items // 50
        local = (rng.beta(0.6, 4.0, (s.users, s.history + 12)) * span).astype(np.int64)
        bought = taste[:, None] * span + local
        self.history = torch.from_numpy(bought[:, : s.history])
        self.future = torch.from_numpy(bought[:, s.history:])
        self.age = torch.from_numpy(rng.integers(0, 8, s.users))
        self.region = torch.from_numpy(rng.integers(0, 40, s.users))
        users = np.repeat(np.arange(s.users), bought.shape[1])
        self.keys = torch.from_numpy(np.unique(users * s.items + bought.ravel()))
        self.seen = [set(row) for row in bought.tolist()]
        self.items = s.items

    def epochs(self, batch, gen):
        users, slots = self.future.shape
        while True:
            order = torch.randperm(users * slots, generator=gen)
            for part in order.split(batch):
                if len(part) == batch:
                    u = part // slots
                    yield u, self.future[u, part % slots]
