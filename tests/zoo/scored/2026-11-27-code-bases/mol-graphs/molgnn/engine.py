import time

import torch
import torch.nn.functional as F


class Engine:
    def __init__(self, cfg, accelerator, model, optimizer, batches, held_out):
        self.cfg, self.acc = cfg, accelerator
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.batches = iter(batches)
        self.held_out = held_out
        self.running = torch.zeros(())

    def step(self):
        adj, x, y = next(self.batches)
        loss = F.smooth_l1_loss(self.model(adj, x), y)
        self.optimizer.zero_grad()
        self.acc.backward(loss)
        self.optimizer.step()
        self.running += loss.detach()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        adj, x, y = self.held_out
        error = (self.model(adj, x) - y).abs().mean().item()
        self.model.train()
        return error

    def fit(self):
        start = time.perf_counter()
        for i in range(1, self.cfg.steps + 1):
            self.step()
            if i % self.cfg.log_every == 0:
                self.acc.print(f"step {i} loss {self.running.item() / self.cfg.log_every:.4f}", flush=True)
                self.running.zero_()
            if i % self.cfg.eval_every == 0:
                self.acc.print(f"step {i} held-out error {self.evaluate():.4f}", flush=True)
        dt = time.perf_counter() - start
        self.acc.print(f"{self.cfg.steps} steps, {dt:.1f} s, {1000 * dt / self.cfg.steps:.1f} ms/step")
