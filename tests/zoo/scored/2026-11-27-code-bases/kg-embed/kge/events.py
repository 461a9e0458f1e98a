import time
from collections import defaultdict

import torch


class Bus:
    def __init__(self):
        self.handlers = defaultdict(list)

    def on(self, event, every=1):
        def deco(fn):
            self.handlers[event].append((every, fn))
            return fn
        return deco

    def fire(self, event, session):
        for every, fn in self.handlers[event]:
            if session.step % every == 0:
                fn(session)


def default_bus(opts):
    bus = Bus()
    started = time.perf_counter()

    @bus.on("step", every=opts.report_every)
    def report(s):
        print(f"[{s.step}] loss={s.loss.item():.4f}", flush=True)

    @bus.on("step", every=opts.probe_every)
    def probe(s):
        with torch.no_grad():
            s.model.eval()
            rows, neg = s.probe_batch
            print(f"[{s.step}] probe={s.model(rows, neg).item():.4f}", flush=True)
            s.model.train()

    @bus.on("end")
    def total(s):
        dt = time.perf_counter() - started
        print(f"{s.step} steps, {dt:.1f} s, {1000 * dt / s.step:.1f} ms/step")

    return bus
