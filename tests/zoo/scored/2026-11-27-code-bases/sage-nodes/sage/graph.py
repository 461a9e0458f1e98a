import numpy as np
import torch


class Graph:
    def __init__(self, opts):
        rng = np.random.default_rng(opts.seed)
        n = opts.nodes
        self.label = rng.integers(0, opts.classes, n)
        deg = rng.poisson(opts.degree - 2, n) + 2
        self.indptr = np.concatenate([[0], np.cumsum(deg)])
        src = np.repeat(np.arange(n), deg)
        dst = rng.integers(0, n, len(src))
        # half of the edges stay inside the class
        by_class = np.argsort(self.label, kind="stable")
        starts = np.searchsorted(self.label[by_class], np.arange(opts.classes + 1))
        lab = self.label[src]
        inside = by_class[starts[lab] + (rng.random(len(src)) * (starts[lab + 1] - starts[lab])).astype(int)]
        self.indices = np.where(rng.random(len(src)) < 0.5, inside, dst)
        centre = rng.normal(size=(opts.classes, opts.features)).astype(np.float32)
        noise = rng.standard_normal((n, opts.features), dtype=np.float32)
        self.x = torch.from_numpy(0.5 * centre[self.label] + 2.0 * noise)
        self.y = torch.from_numpy(self.label)

    def adjacency(self):
        return [self.indices[a:b].tolist() for a, b in zip(self.indptr[:-1], self.indptr[1:])]
