import torch


class Blobs:
    """Soft coloured discs; the label is the disc's sector."""

    def __init__(self, n, size, classes, seed):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(classes, (n,), generator=g)
        angle = self.labels.float() / classes * 6.2832
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
        d = (xx - 0.5 * angle.cos()[:, None, None]) ** 2 + (yy - 0.5 * angle.sin()[:, None, None]) ** 2
        width = 0.05 + 0.2 * torch.rand(n, 1, 1, generator=g)
        self.images = (torch.exp(-d / width)[:, None] * torch.rand(n, 3, 1, 1, generator=g)) * 2 - 1
        self.gen = g

    def draw(self, batch):
        i = torch.randint(len(self.labels), (batch,), generator=self.gen)
        return self.images[i], self.labels[i]
