import torch
import torch.nn.functional as F


class PretrainLoop:
    def __init__(self, cfg, model, queue, batches, optimizer, callbacks):
        self.cfg = cfg
        self.model = model
        self.queue = queue
        self.batches = iter(batches)
        self.optimizer = optimizer
        self.callbacks = callbacks
        self.step = 0
        self.loss = None

    def emit(self, event):
        for cb in self.callbacks:
            getattr(cb, event)(self)

    def info_nce(self, q, k, negatives):
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ negatives.t()
        logits = torch.cat([pos, neg], dim=1).div_(self.cfg.temperature)
        target = torch.zeros(len(q), dtype=torch.long)
        return F.cross_entropy(logits, target)

    def train_step(self):
        a, b = next(self.batches)
        q, k = self.model(a, b)
        self.loss = self.info_nce(q, k, self.queue.negatives())
        self.optimizer.zero_grad(set_to_none=True)
        self.loss.backward()
        self.optimizer.step()
        self.queue.push(k)

    def run(self):
        self.emit("on_start")
        while self.step < self.cfg.steps:
            self.emit("on_step_begin")
            self.train_step()
            self.step += 1
            self.emit("on_step_end")
        self.emit("on_end")
