import multiprocessing as mp

import numpy as np
import torch


class Feeder:
    """Draws batches in a process of its own, ``ahead`` of the training."""

    def __init__(self, graph, sampler, opts):
        self.graph = graph
        self.sampler = sampler
        self.opts = opts
        ctx = mp.get_context("fork")
        self.ready = ctx.Queue(maxsize=opts.ahead)
        self.process = ctx.Process(target=self._produce, daemon=True)

    def start(self):
        self.process.start()
        return self

    def _produce(self):
        rng = np.random.default_rng(self.opts.seed + 1)
        for _ in range(self.opts.steps):
            seeds = rng.integers(0, self.opts.nodes, self.opts.batch)
            self.ready.put(self.sampler.sample(seeds))

    def take(self):
        layers = [torch.from_numpy(ids) for ids in self.ready.get()]
        return layers, self.graph.y[layers[0]]
