import torch
import torch.nn.functional as F
from torch.utils.data import Dataset


def rank_filter(img, k):
    """k x k median of every pixel."""
    pad = F.pad(img[None], (k // 2,) * 4, mode="reflect")[0]
    windows = pad.unfold(1, k, 1).unfold(2, k, 1)
    return windows.reshape(*img.shape, k * k).sort(dim=-1).values[..., k * k // 2]


class PatchDataset(Dataset):
    def __init__(self, size, patch, seed, heavy_from):
        self.size, self.patch, self.seed = size, patch, seed
        self.heavy_from = heavy_from

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        high = torch.rand(1, self.patch, self.patch, generator=g)
        smooth = high
        if i >= self.heavy_from:
            for k in (3, 5, 7, 9, 11):
                smooth = rank_filter(smooth, k)
        return F.avg_pool2d(smooth, 2), high
