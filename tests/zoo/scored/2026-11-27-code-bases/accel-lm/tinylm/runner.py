import contextlib
import time

import torch


class Runner:
    def __init__(self, cfg, accelerator, model, optimizer, schedule, corpus):
        self.cfg, self.acc = cfg, accelerator
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.schedule = schedule
        self.corpus = corpus
        torch.autograd.set_detect_anomaly(cfg.trace_nans)

    def sync_context(self, last):
        return contextlib.nullcontext() if last else self.acc.no_sync(self.model)

    def accumulate(self):
        total = 0.0
        for i in range(self.cfg.accumulate):
            with self.sync_context(last=i == self.cfg.accumulate - 1):
                loss = self.model(*self.corpus.micro_batch()) / self.cfg.accumulate
                self.acc.backward(loss)
            total = total + loss.detach()
        return total

    def run(self):
        start = time.perf_counter()
        for step in range(1, self.cfg.steps + 1):
            loss = self.accumulate()
            self.acc.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            if step % self.cfg.log_every == 0:
                self.acc.print(f"step {step} loss {loss.item():.3f}", flush=True)
        dt = time.perf_counter() - start
        self.acc.print(f"{self.cfg.steps} steps in {dt:.1f} s, {1000 * dt / self.cfg.steps:.1f} ms/step")
