import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def smooth_noise(n, size, coarse, gen):
    z = torch.randn(n, 1, coarse, coarse, generator=gen)
    return F.interpolate(z, size=(size, size), mode="bicubic", align_corners=False).squeeze(1)


class TileDataset(Dataset):
    """Height, slope and moisture maps; the class is a band of height shifted by moisture."""

    def __init__(self, cfg, seed):
        gen = torch.Generator().manual_seed(seed)
        height = smooth_noise(cfg.tiles, cfg.size, 8, gen)
        moist = smooth_noise(cfg.tiles, cfg.size, 4, gen)
        slope = height.diff(dim=2, append=height[:, :, -1:])
        noise = 0.1 * torch.randn(cfg.tiles, 3, cfg.size, cfg.size, generator=gen)
        self.x = torch.stack([height, slope * 5, moist], 1) + noise
        edges = torch.linspace(-1.2, 1.2, cfg.classes - 1)
        self.y = torch.bucketize(height + 0.5 * moist, edges)

    def __len__(self):
        return len(self.x)

    def __getitems__(self, idx):
        idx = torch.as_tensor(idx)
        return self.x[idx], self.y[idx]


class TerrainData(L.LightningDataModule):
    def __init__(self, cfg, seed):
        super().__init__()
        self.cfg, self.seed = cfg, seed

    def setup(self, stage):
        self.train = TileDataset(self.cfg, self.seed)

    def train_dataloader(self):
        # tiles live in memory and a batch is one gather, so workers would only copy
        return DataLoader(self.train, batch_size=self.cfg.batch, shuffle=True, drop_last=True, collate_fn=lambda b: b)
