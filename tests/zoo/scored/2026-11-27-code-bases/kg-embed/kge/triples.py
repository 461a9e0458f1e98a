import numpy as np
import torch


class TripleStore:
    """A random multi-relational graph with a skewed degree distribution."""

    def __init__(self, opts):
        rng = np.random.default_rng(opts.seed)
        n = opts.triples
        head = (opts.entities * rng.random(n) ** 2).astype(np.int64)
        rel = rng.integers(0, opts.relations, n)
        tail = (head * 7 + rel * 131 + rng.integers(0, 50, n)) % opts.entities
        self.array = torch.from_numpy(np.stack([head, rel, tail], 1))

    def __len__(self):
        return len(self.array)


def batches(store, opts):
    gen = torch.Generator().manual_seed(opts.seed)
    while True:
        perm = torch.randperm(len(store), generator=gen)
        for lo in range(0, len(store) - opts.batch_size + 1, opts.batch_size):
            rows = store.array[perm[lo:lo + opts.batch_size]]
            neg = torch.randint(0, opts.entities, (opts.negatives,), generator=gen)
            yield rows, neg
