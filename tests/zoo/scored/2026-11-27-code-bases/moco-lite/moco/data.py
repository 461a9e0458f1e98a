import torch
import torch.nn.functional as F


class TextureImages:
    """Images of a few texture families, kept in memory as uint8."""

    def __init__(self, cfg):
        g = torch.Generator().manual_seed(cfg.seed)
        n, s = cfg.n_images, cfg.image_size
        bases = torch.rand(cfg.n_groups, 3, 8, 8, generator=g)
        bases = F.interpolate(bases, size=(s, s), mode="bilinear", align_corners=False)
        self.group = torch.randint(0, cfg.n_groups, (n,), generator=g)
        noise = torch.rand(n, 3, s, s, generator=g)
        self.images = ((0.7 * bases[self.group] + 0.3 * noise) * 255).to(torch.uint8)

    def __len__(self):
        return self.images.shape[0]


class TwoViews:
    """Endless batches of two augmented views; the augmentations act on the whole batch."""

    def __init__(self, dataset, batch_size, seed):
        self.dataset = dataset
        self.batch_size = batch_size
        self.gen = torch.Generator().manual_seed(seed)

    def augment(self, x):
        n, _, h, w = x.shape
        dy, dx = torch.randint(-4, 5, (2,), generator=self.gen).tolist()
        x = torch.roll(x, (dy, dx), dims=(2, 3))
        flip = torch.rand(n, 1, 1, 1, generator=self.gen) < 0.5
        x = torch.where(flip, x.flip(3), x)
        gain = 0.8 + 0.4 * torch.rand(n, 3, 1, 1, generator=self.gen)
        return x * gain

    def __iter__(self):
        n = len(self.dataset)
        while True:
            order = torch.randperm(n, generator=self.gen)
            for i in range(0, n - self.batch_size + 1, self.batch_size):
                x = self.dataset.images[order[i:i + self.batch_size]].float().div_(255)
                yield self.augment(x), self.augment(x)
