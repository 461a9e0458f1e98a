import time


class Monitor:
    def on_start(self, solver): ...
    def on_iteration(self, solver, it, terms): ...
    def on_end(self, solver): ...


class ConsoleMonitor(Monitor):
    def __init__(self, every):
        self.every = every

    def on_start(self, solver):
        self.t0 = time.perf_counter()

    def on_iteration(self, solver, it, terms):
        if it % self.every == 0:
            body = "  ".join(f"{k}={v.item():.3e}" for k, v in terms.items())
            print(f"[{it:5d}] {body}  {time.perf_counter() - self.t0:.1f}s", flush=True)

    def on_end(self, solver):
        took = time.perf_counter() - self.t0
        print(f"done: {solver.cfg.max_iters} iterations, {took:.2f}s", flush=True)
