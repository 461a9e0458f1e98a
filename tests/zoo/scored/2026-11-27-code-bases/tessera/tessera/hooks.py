import os
import tempfile
import time

import torch

from .registry import register


class Hook:
    def start(self, loop): ...
    def before(self, loop): ...
    def after(self, loop): ...
    def finish(self, loop): ...


@register("hook")
class Warmup(Hook):
    def __init__(self, steps):
        self.steps = steps

    def before(self, loop):
        if loop.step < self.steps:
            for group in loop.optimizer.param_groups:
                group["lr"] = loop.cfg["train"]["lr"] * (loop.step + 1) / self.steps


@register("hook")
class Meter(Hook):
    def __init__(self, every):
        self.every = every

    def start(self, loop):
        self.t0 = time.perf_counter()

    def after(self, loop):
        if loop.rank == 0 and (loop.step + 1) % self.every == 0:
            ms = (time.perf_counter() - self.t0) / (loop.step + 1) * 1e3
            print(f"step {loop.step + 1} loss {loop.loss.item():.4f} {ms:.1f} ms/step", flush=True)


@register("hook")
class SaveLast(Hook):
    def finish(self, loop):
        if loop.rank == 0:
            with tempfile.TemporaryDirectory() as d:
                path = os.path.join(d, "last.pt")
                torch.save(loop.model.module.state_dict(), path)
                print(f"saved {os.path.getsize(path) / 1e6:.1f} MB")
