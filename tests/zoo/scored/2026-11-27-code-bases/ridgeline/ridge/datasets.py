import torch

from .registry import DATASETS


@DATASETS.register
class Shapes:
    """Coloured gratings whose orientation is the class; all images stay in memory."""

    def __init__(self, num_images, size, num_classes, seed):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(num_classes, (num_images,), generator=g)
        angle = self.labels.float() / num_classes * 3.14159
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
        phase = torch.rand(num_images, 1, 1, generator=g) * 6.28
        wave = torch.sin(9 * (xx * angle.cos()[:, None, None] + yy * angle.sin()[:, None, None]) + phase)
        tint = torch.rand(num_images, 3, 1, 1, generator=g)
        noise = 0.4 * torch.randn(num_images, 3, size, size, generator=g)
        self.images = (wave[:, None] * tint + noise).contiguous()

    def __len__(self):
        return len(self.labels)

    def batches(self, batch_size, generator):
        while True:
            order = torch.randperm(len(self), generator=generator)
            for idx in order.split(batch_size):
                if len(idx) == batch_size:
                    yield self.images[idx], self.labels[idx]
