import torch
from torch.utils.data import Dataset


class PairDataset(Dataset):
    """Token pairs: the second of a pair is the first one with a part of its tokens replaced."""

    def __init__(self, n, cfg, seed):
        g = torch.Generator().manual_seed(seed)
        a = torch.randint(1, cfg.vocab, (n, cfg.length), generator=g)
        other = torch.randint(1, cfg.vocab, (n, cfg.length), generator=g)
        keep = torch.rand(n, cfg.length, generator=g) < 0.7
        self.a, self.b = a, torch.where(keep, a, other)

    def __len__(self):
        return len(self.a)

    def __getitems__(self, index):
        index = torch.as_tensor(index)
        return self.a[index], self.b[index]

    def __getitem__(self, i):
        return self.a[i], self.b[i]


def collate(batch):
    a, b = batch
    return {"anchor": a, "positive": b}
