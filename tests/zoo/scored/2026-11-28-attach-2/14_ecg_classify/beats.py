import torch


class CorruptBeat(ValueError):
    pass


class BeatSource:
    def __init__(self, seed, bad_after=None):
        self.g = torch.Generator().manual_seed(seed)
        self.bad_after = bad_after
        self.count = 0

    def draw(self, n):
        self.count += 1
        y = torch.randint(0, 5, (n,), generator=self.g)
        t = torch.linspace(0, 1, 180)
        x = torch.exp(-((t - 0.2 - 0.12 * y[:, None]) ** 2) / 0.002)
        x = x + 0.1 * torch.randn(n, 180, generator=self.g)
        if self.count == self.bad_after:
            x[3, 40:] = float("nan")
        if not torch.isfinite(x).all():
            raise CorruptBeat(f"record {self.count * n}")
        return x[:, None], y
