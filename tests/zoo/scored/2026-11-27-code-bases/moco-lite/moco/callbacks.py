import math
import time


class Callback:
    def on_start(self, loop): ...
    def on_step_begin(self, loop): ...
    def on_step_end(self, loop): ...
    def on_end(self, loop): ...


class CosineLR(Callback):
    def on_step_begin(self, loop):
        t = loop.step / loop.cfg.steps
        for group in loop.optimizer.param_groups:
            group["lr"] = 0.5 * loop.cfg.lr * (1 + math.cos(math.pi * t))


class KeyUpdate(Callback):
    def on_step_end(self, loop):
        loop.model.update_key()


class Printer(Callback):
    def on_start(self, loop):
        self.t0 = time.perf_counter()

    def on_step_end(self, loop):
        if loop.step % loop.cfg.print_every == 0:
            print(f"step {loop.step:4d} loss {loop.loss.item():.4f}", flush=True)

    def on_end(self, loop):
        dt = time.perf_counter() - self.t0
        print(f"done: {loop.cfg.steps} steps in {dt:.1f} s ({1000 * dt / loop.cfg.steps:.1f} ms/step)")
