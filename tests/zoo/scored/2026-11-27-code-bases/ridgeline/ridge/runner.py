import torch

from .registry import DATASETS, HOOKS, MODELS


class IterRunner:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.dataset = DATASETS.build(cfg.dataset)
        self.model = MODELS.build(cfg.model)
        opt = dict(cfg.optimizer)
        self.optimizer = getattr(torch.optim, opt.pop("type"))(self.model.parameters(), **opt)
        self.hooks = [HOOKS.build(h) for h in cfg.hooks]
        self.iter = 0
        self.outputs = None

    def call(self, point):
        for hook in self.hooks:
            getattr(hook, point)(self)

    def train_iter(self, images, labels):
        self.outputs = self.model(images, labels)
        self.optimizer.zero_grad(set_to_none=True)
        self.outputs["loss"].backward()
        self.optimizer.step()

    def run(self):
        gen = torch.Generator().manual_seed(self.cfg.seed)
        batches = self.dataset.batches(self.cfg.batch_size, gen)
        self.model.train()
        self.call("before_run")
        for self.iter in range(self.cfg.max_iters):
            images, labels = next(batches)
            self.call("before_iter")
            self.train_iter(images, labels)
            self.call("after_iter")
        self.call("after_run")
