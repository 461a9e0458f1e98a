"""Point clouds on the space-time rectangle [-1, 1] x [0, 1]."""
import torch


class Rectangle:
    def __init__(self, x_range=(-1.0, 1.0), t_range=(0.0, 1.0), generator=None):
        self.x0, self.x1 = x_range
        self.t0, self.t1 = t_range
        self.gen = generator

    def _uniform(self, n, lo, hi):
        return lo + (hi - lo) * torch.rand(n, 1, generator=self.gen)

    def interior(self, n):
        return torch.cat([self._uniform(n, self.x0, self.x1), self._uniform(n, self.t0, self.t1)], dim=1)

    def initial(self, n):
        x = self._uniform(n, self.x0, self.x1)
        return torch.cat([x, torch.full_like(x, self.t0)], dim=1)

    def boundary(self, n):
        t = self._uniform(n // 2, self.t0, self.t1)
        left = torch.cat([torch.full_like(t, self.x0), t], dim=1)
        right = torch.cat([torch.full_like(t, self.x1), t], dim=1)
        return torch.cat([left, right])


class CollocationPool:
    """A fixed pool of points drawn once; every iteration takes a random slice of it."""

    def __init__(self, domain, cfg, generator):
        self.gen = generator
        self.cfg = cfg
        self.inside = domain.interior(cfg.pool_size)
        self.start = domain.initial(cfg.pool_size // 4)
        self.edge = domain.boundary(cfg.pool_size // 4)

    def _take(self, points, n):
        idx = torch.randint(len(points), (n,), generator=self.gen)
        return points[idx]

    def draw(self):
        return {
            "interior": self._take(self.inside, self.cfg.n_interior),
            "initial": self._take(self.start, self.cfg.n_initial),
            "boundary": self._take(self.edge, self.cfg.n_boundary),
        }
