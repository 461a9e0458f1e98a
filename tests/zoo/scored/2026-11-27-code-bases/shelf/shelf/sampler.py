"""Negative items for a batch of users: log-uniform over the items that the user has not bought."""
import math
import random

import torch


class ExactSampler:
    def __init__(self, data, k, seed):
        self.data, self.k = data, k
        self.rng = random.Random(seed)

    def draw(self, users):
        n = self.data.items
        rand, span = self.rng.random, math.log(n)
        rows = []
        for u in users.tolist():
            seen = self.data.seen[u]
            row = []
            while len(row) < self.k:
                item = int(math.exp(rand() * span))
                if item not in seen and item not in row:
                    row.append(item)
            rows.append(row)
        return torch.tensor(rows)


class SortedSampler:
    """Rejection against the sorted list of (user, item) keys; a second draw replaces the hits."""

    def __init__(self, data, k, seed):
        self.data, self.k = data, k
        self.gen = torch.Generator().manual_seed(seed)

    def _log_uniform(self, n, shape):
        u = torch.rand(shape, generator=self.gen)
        return (u * math.log(n)).exp_().long().clamp_(max=n - 1)

    def draw(self, users):
        n, keys = self.data.items, self.data.keys
        items = self._log_uniform(n, (len(users), self.k))
        wanted = users[:, None] * n + items
        at = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
        again = self._log_uniform(n, items.shape)
        return torch.where(keys[at] == wanted, again, items)


SAMPLERS = {"exact": ExactSampler, "sorted": SortedSampler}
