import time

import torch
import torch.nn.functional as F


class Engine:
    """Event-driven loop: handlers are attached with `engine.on(event)`."""

    def __init__(self, model, opt, total_steps):
        self.model = model
        self.opt = torch.optim.AdamW(model.parameters(), lr=opt.lr, fused=True)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, opt.lr, total_steps=total_steps)
        self.handlers = {}
        self.step = 0

    def on(self, event):
        def attach(fn):
            self.handlers.setdefault(event, []).append(fn)
            return fn
        return attach

    def fire(self, event, **kw):
        for fn in self.handlers.get(event, ()):
            fn(self, **kw)

    def update(self, ids, labels):
        logits = self.model(ids)
        loss = F.cross_entropy(logits, labels)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.sched.step()
        return loss.detach(), logits.detach()

    def fit(self, batches, passes):
        self.started = time.perf_counter()
        for p in range(passes):
            for ids, labels in batches:
                loss, logits = self.update(ids, labels)
                self.step += 1
                self.fire("step", loss=loss, logits=logits, labels=labels)
            self.fire("pass", number=p + 1)
        self.fire("finish")
