import torch


class ShapeImages:
    """Discs and bars of random colour on a dark ground, in memory."""

    def __init__(self, s):
        g = torch.Generator().manual_seed(s.seed)
        n, size = s.images, s.size
        yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        c = torch.randint(8, size - 8, (n, 2, 1, 1), generator=g)
        r = torch.randint(3, 8, (n, 1, 1), generator=g)
        disc = ((yy - c[:, 0]) ** 2 + (xx - c[:, 1]) ** 2) <= r ** 2
        bar = (yy - c[:, 0]).abs() < (r // 2)
        mask = torch.where(torch.rand(n, 1, 1, generator=g) < 0.5, disc, bar).unsqueeze(1)
        colour = torch.rand(n, 3, 1, 1, generator=g)
        self.data = (mask * colour * 2 - 1).float()
        self.gen = g

    def batch(self, n):
        return self.data[torch.randint(0, len(self.data), (n,), generator=self.gen)]
