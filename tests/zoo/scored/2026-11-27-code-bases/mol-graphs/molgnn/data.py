import torch


def make_graphs(cfg, n, seed):
    """Random graphs of equal size with a target that depends on their edges."""
    g = torch.Generator().manual_seed(seed)
    p = 0.05 + 0.2 * torch.rand(n, 1, 1, generator=g)
    upper = (torch.rand(n, cfg.nodes, cfg.nodes, generator=g) < p).float().triu(1)
    adj = upper + upper.transpose(1, 2)
    x = torch.randn(n, cfg.nodes, cfg.features, generator=g)
    triangles = (adj @ adj @ adj).diagonal(dim1=1, dim2=2).sum(1)
    y = (triangles + 1).log() + 0.1 * x[..., 0].mean(1)
    return adj, x, y


class GraphBatches:
    """Iterates over shuffled batches, sliced from the tensors."""

    def __init__(self, tensors, batch, seed):
        self.tensors, self.batch = tensors, batch
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        n = len(self.tensors[0])
        while True:
            for idx in torch.randperm(n, generator=self.gen).split(self.batch):
                if len(idx) == self.batch:
                    yield tuple(t[idx] for t in self.tensors)
