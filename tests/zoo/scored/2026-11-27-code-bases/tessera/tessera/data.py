import torch

from .registry import register


@register("data")
class Mosaic:
    def __init__(self, images, size, classes, seed, rank, world):
        g = torch.Generator().manual_seed(seed)
        proto = torch.randn(classes, 3, size // 4, size // 4, generator=g)
        y = torch.randint(classes, (images,), generator=g)
        x = proto[y].repeat_interleave(4, 2).repeat_interleave(4, 3)
        x = x + 1.2 * torch.randn(images, 3, size, size, generator=g)
        self.x, self.y = x[rank::world].contiguous(), y[rank::world].contiguous()
        self.gen = torch.Generator().manual_seed(seed + 1 + rank)

    def stream(self, batch):
        while True:
            for rows in torch.randperm(len(self.y), generator=self.gen).split(batch):
                if len(rows) == batch:
                    yield self.x[rows], self.y[rows]
