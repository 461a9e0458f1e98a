import time

import torch
import torch.nn.functional as F


class Fitter:
    def __init__(self, accelerator, model, sampler, c):
        self.acc, self.sampler, self.c = accelerator, sampler, c
        opt = torch.optim.AdamW(model.parameters(), lr=c.lr, weight_decay=1e-4, fused=True)
        sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, (i + 1) / c.warmup))
        self.model, self.opt, self.sched = accelerator.prepare(model, opt, sched)
        self.observers = []

    def observe(self, fn):
        self.observers.append(fn)
        return fn

    def step(self):
        togo, state, action, at = self.sampler.next()
        loss = F.mse_loss(self.model(togo, state, action, at), action.clamp(-1, 1))
        self.opt.zero_grad(set_to_none=True)
        self.acc.backward(loss)
        self.acc.clip_grad_norm_(self.model.parameters(), self.c.clip)
        self.opt.step()
        self.sched.step()
        return loss.detach()

    def run(self):
        begin = time.perf_counter()
        for i in range(1, self.c.steps + 1):
            loss = self.step()
            for fn in self.observers:
                fn(i, loss, time.perf_counter() - begin)
        self.acc.print(f"fitted {self.c.steps} steps in {time.perf_counter() - begin:.2f}s", flush=True)
