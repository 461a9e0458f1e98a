import random

import numpy as np

SAMPLERS = {}


def sampler(name):
    def deco(cls):
        SAMPLERS[name] = cls
        return cls
    return deco


@sampler("adjacency")
class AdjacencySampler:
    """Samples with replacement from neighbour lists, hop by hop."""

    def __init__(self, graph, fanouts, seed):
        self.neighbours = graph.adjacency()
        self.fanouts = fanouts
        self.random = random.Random(seed)

    def sample(self, seeds):
        layers = [seeds]
        frontier = seeds.tolist()
        for fanout in self.fanouts:
            picked = []
            for node in frontier:
                options = self.neighbours[node]
                for _ in range(fanout):
                    picked.append(options[self.random.randrange(len(options))])
            layers.append(np.asarray(picked))
            frontier = picked
        return layers


@sampler("csr")
class CsrSampler:
    """The same draw on the compressed rows, a whole hop at once."""

    def __init__(self, graph, fanouts, seed):
        self.indptr, self.indices = graph.indptr, graph.indices
        self.fanouts = fanouts
        self.rng = np.random.default_rng(seed)

    def sample(self, seeds):
        layers = [seeds]
        frontier = seeds
        for fanout in self.fanouts:
            lo = self.indptr[frontier][:, None]
            deg = self.indptr[frontier + 1][:, None] - lo
            pos = (self.rng.random((len(frontier), fanout)) * deg).astype(np.int64)
            frontier = self.indices[lo + pos].reshape(-1)
            layers.append(frontier)
        return layers


def make_sampler(opts, graph):
    return SAMPLERS[opts.sampler](graph, opts.fanouts, opts.seed)
