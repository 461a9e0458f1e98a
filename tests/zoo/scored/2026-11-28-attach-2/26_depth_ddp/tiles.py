import torch
from torch.utils.data import Dataset


class TileDataset(Dataset):
    """Tiles of a big height map. Tiles at the seam are blended with the one before."""

    def __init__(self, count, seam, lock, size=24):
        self.count, self.seam, self.size = count, seam, size
        self.lock = lock
        self.base = torch.randn(64, 64).cumsum(0).cumsum(1) / 64

    def __len__(self):
        return self.count

    def _cut(self, i):
        r, c = (i * 7) % (64 - self.size), (i * 13) % (64 - self.size)
        return self.base[r:r + self.size, c:c + self.size]

    def height(self, i):
        with self.lock:
            tile = self._cut(i).clone()
            if i % self.seam == 0 and i > 0:
                tile = 0.5 * (tile + self.height(i - 1))
        return tile

    def __getitem__(self, i):
        y = self.height(i)[None]
        return (y + 0.1 * torch.randn_like(y)).sigmoid(), y
