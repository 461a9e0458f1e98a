import time

import torch


class Log:
    def __init__(self, every):
        self.every = every
        self.start = time.perf_counter()

    def after_step(self, run):
        if run.step % self.every == 0:
            acc = (run.logits.argmax(1) == run.target).float().mean().item()
            print(f"step {run.step} loss {run.loss.item():.3f} acc {acc:.3f}", flush=True)

    def finish(self, run):
        dt = time.perf_counter() - self.start
        print(f"{run.step} steps, {dt:.1f} s, {1000 * dt / run.step:.1f} ms/step")


class Ema:
    """Moving average of the weights, for the later evaluation."""

    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.average = [p.detach().clone() for p in model.parameters()]

    def after_step(self, run):
        torch._foreach_lerp_(self.average, [p.detach() for p in run.model.parameters()], 1 - self.decay)

    def finish(self, run):
        pass
