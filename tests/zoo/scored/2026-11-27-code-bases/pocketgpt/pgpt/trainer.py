import time

import torch


class Trainer:
    def __init__(self, model, optimizer, stream, cfg, lr_at, rank):
        self.model, self.optimizer, self.stream = model, optimizer, stream
        self.cfg, self.lr_at, self.rank = cfg, lr_at, rank

    def accumulate(self):
        """One optimizer step's worth of micro-batches; returns the mean loss as a tensor."""
        total = 0.0
        last = self.cfg.grad_accum - 1
        for micro in range(self.cfg.grad_accum):
            x, y = self.stream.get_batch()
            if self.cfg.defer_sync:
                self.model.require_backward_grad_sync = micro == last
            loss = self.model(x, y) / self.cfg.grad_accum
            loss.backward()
            total = total + loss.detach()
        return total

    def fit(self):
        cfg = self.cfg
        begin = time.perf_counter()
        for step in range(cfg.max_steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr_at(step, cfg)
            loss = self.accumulate()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), cfg.grad_clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if self.rank == 0 and (step + 1) % cfg.log_every == 0:
                ms = (time.perf_counter() - begin) / (step + 1) * 1e3
                print(f"step {step + 1}: loss {loss.item():.4f}, {ms:.1f} ms/step", flush=True)
