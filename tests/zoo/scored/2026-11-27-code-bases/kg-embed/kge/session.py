from .events import default_bus
from .model import LinkPredictor, build_optimizers
from .triples import TripleStore, batches


class Session:
    def __init__(self, opts):
        self.opts = opts
        self.store = TripleStore(opts)
        self.model = LinkPredictor(opts)
        self.optimizers = build_optimizers(self.model, opts)
        self.stream = batches(self.store, opts)
        self.probe_batch = next(self.stream)
        self.bus = default_bus(opts)
        self.step = 0
        self.loss = None

    def advance(self):
        rows, neg = next(self.stream)
        for o in self.optimizers:
            o.zero_grad()
        self.loss = self.model(rows, neg)
        self.loss.backward()
        for o in self.optimizers:
            o.step()
        self.step += 1

    def fit(self):
        for _ in range(self.opts.steps):
            self.advance()
            self.bus.fire("step", self)
        self.bus.fire("end", self)
