import sys

import torch
import torch.nn.functional as F

from .feeder import Feeder
from .graph import Graph
from .hooks import Ema, Log
from .nn import Sage
from .options import get
from .samplers import make_sampler


class Run:
    def __init__(self, opts):
        self.opts = opts
        self.graph = Graph(opts)
        self.model = Sage(opts.features, opts.hidden, opts.classes)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=opts.lr, fused=True)
        self.feeder = Feeder(self.graph, make_sampler(opts, self.graph), opts)
        self.hooks = [Ema(self.model), Log(opts.log_every)]
        self.step = 0

    def train(self):
        self.feeder.start()
        while self.step < self.opts.steps:
            layers, self.target = self.feeder.take()
            self.logits = self.model(self.graph.x, layers)
            self.loss = F.cross_entropy(self.logits, self.target)
            self.optim.zero_grad()
            self.loss.backward()
            self.optim.step()
            self.step += 1
            for h in self.hooks:
                h.after_step(self)
        for h in self.hooks:
            h.finish(self)


if __name__ == "__main__":
    options = get(overrides=sys.argv[1:])
    torch.manual_seed(options.seed)
    Run(options).train()
