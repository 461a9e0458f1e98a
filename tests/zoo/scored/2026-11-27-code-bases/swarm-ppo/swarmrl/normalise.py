"""Observation scaling shared by the collector and the learner."""
import numpy as np


class ExactNormaliser:
    """Scales by the mean and deviation of everything seen so far."""

    def __init__(self, dim, clip=8.0):
        self.clip = clip
        self.seen = []
        self.mean = np.zeros(dim, np.float32)
        self.std = np.ones(dim, np.float32)

    def update(self, obs):
        self.seen.append(obs)
        everything = np.concatenate(self.seen)
        self.mean = everything.mean(axis=0)
        self.std = everything.std(axis=0) + 1e-6

    def __call__(self, obs):
        return np.clip((obs - self.mean) / self.std, -self.clip, self.clip)


class StreamingNormaliser(ExactNormaliser):
    """Parallel-variance update (Chan et al.)."""

    def __init__(self, dim, clip=8.0):
        super().__init__(dim, clip)
        self.count = 0
        self.m1 = np.zeros(dim)
        self.m2 = np.zeros(dim)

    def update(self, obs):
        n, mu = len(obs), obs.mean(axis=0)
        delta, total = mu - self.m1, self.count + n
        self.m2 += ((obs - mu) ** 2).sum(axis=0) + delta ** 2 * self.count * n / total
        self.m1 += delta * n / total
        self.count = total
        self.mean = self.m1.astype(np.float32)
        self.std = np.sqrt(self.m2 / total).astype(np.float32) + 1e-6


NORMALISERS = {"exact": ExactNormaliser, "streaming": StreamingNormaliser}
