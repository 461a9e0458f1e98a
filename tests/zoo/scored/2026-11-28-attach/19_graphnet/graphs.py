import torch
from torch.utils.data import Dataset


class RandomGraphs(Dataset):
    """Erdos-Renyi graphs; each worker asks once per epoch how dense they shall be."""

    def __init__(self, size, density_queue, nodes=20, dim=16):
        self.size, self.nodes, self.dim = size, nodes, dim
        self.density_queue = density_queue
        self._density = None

    def __len__(self):
        return self.size

    @property
    def density(self):
        if self._density is None:
            self._density = self.density_queue.get()
        return self._density

    def __getitem__(self, i):
        adj = (torch.rand(self.nodes, self.nodes) < self.density).float()
        adj = torch.maximum(adj, adj.T)
        feats = torch.randn(self.nodes, self.dim)
        return feats, adj, adj.mean() + feats.mean()


def collate(items):
    f, a, y = zip(*items)
    return torch.stack(f), torch.stack(a), torch.stack(y)
