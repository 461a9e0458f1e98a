import torch
from torch.utils.data import DataLoader, Dataset


class Keywords(Dataset):
    """Log-mel-like clips: each keyword is a pair of chirps. Everything stays in memory."""

    def __init__(self, c, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(c.keywords, (n,), generator=g)
        band = torch.arange(c.bands).view(1, -1, 1)
        t = torch.linspace(0, 1, c.frames).view(1, 1, -1)
        start = 4 + (self.y % 4 * 9).float().view(-1, 1, 1)
        slope = (self.y // 4).float().view(-1, 1, 1) * 12 - 12
        jitter = torch.randn(n, 1, 1, generator=g) * 1.5
        ridge = torch.exp(-((band - start - slope * t - jitter) ** 2) / 6)
        self.x = ridge + 0.5 * torch.randn(n, c.bands, c.frames, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]

    def __getitems__(self, rows):
        return self.x[rows], self.y[rows]


def as_is(batch):
    return batch


def make_loader(dataset, batch, shuffle, seed=0):
    gen = torch.Generator().manual_seed(seed)
    return DataLoader(dataset, batch, shuffle=shuffle, drop_last=shuffle, collate_fn=as_is, generator=gen)
