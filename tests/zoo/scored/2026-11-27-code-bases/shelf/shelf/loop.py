import time

import torch


class Fit:
    def __init__(self, model, optimizers, data, sampler, s):
        self.model, self.optimizers = model, optimizers
        self.data, self.sampler, self.s = data, sampler, s

    def collect(self, users, positive):
        d = self.data
        negative = self.sampler.draw(users)
        return d.history[users], d.age[users], d.region[users], positive, negative

    def update(self, batch):
        loss = self.model(*batch)
        self.optimizers.zero_grad()
        loss.backward()
        self.optimizers.step()
        return loss.detach()

    def run(self):
        gen = torch.Generator().manual_seed(self.s.seed)
        stream = self.data.epochs(self.s.batch, gen)
        t0 = time.perf_counter()
        for step in range(1, self.s.steps + 1):
            users, positive = next(stream)
            loss = self.update(self.collect(users, positive))
            if step % self.s.report_every == 0:
                ms = (time.perf_counter() - t0) / step * 1e3
                print(f"[{step}] loss={loss.item():.4f} {ms:.1f} ms/step", flush=True)
