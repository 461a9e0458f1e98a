import random

from torch.utils.data import Dataset

from popularity import weight


class PairDataset(Dataset):
    def __init__(self, items, size, seed):
        self.items, self.size = items, size
        self.rng = random.Random(seed)

    def __len__(self):
        return self.size

    def __getitem__(self, _):
        a, b = self.rng.sample(range(self.items), 2)
        return (a, b) if self.items - a + weight(a) > self.items - b + weight(b) else (b, a)
