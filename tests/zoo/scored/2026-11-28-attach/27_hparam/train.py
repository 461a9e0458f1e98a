"""Successive halving over learning rates with a small pool of trial threads."""
import argparse
import queue
import signal
import threading
from concurrent.futures import Future

import torch
import torch.nn as nn


class Trial:
    def __init__(self, lr, seed):
        self.lr = lr
        self.g = torch.Generator().manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
        self.opt = torch.optim.SGD(self.net.parameters(), lr)
        self.score = float("inf")

    def advance(self, steps):
        for _ in range(steps):
            x = torch.randn(64, 16, generator=self.g)
            y = x.prod(1, keepdim=True).clamp(-1, 1) + x[:, :1]
            loss = (self.net(x) - y).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"lr {self.lr} diverged")
        self.score = loss.item()
        return self.score


class TrialPool:
    def __init__(self, threads):
        self.jobs = queue.Queue()
        for i in range(threads):
            threading.Thread(target=self._work, name=f"trial-{i}", daemon=True).start()

    def _work(self):
        while True:
            fut, trial, steps = self.jobs.get()
            try:
                fut.set_result(trial.advance(steps))
            except FloatingPointError as err:
                print("dropped:", err, flush=True)

    def submit(self, trial, steps):
        fut = Future()
        self.jobs.put((fut, trial, steps))
        return fut


def halving(trials, pool, rung_steps):
    rung = 0
    while len(trials) > 1:
        pending = [(t, pool.submit(t, rung_steps)) for t in trials]
        if rung == 2:
            print("READY", flush=True)
        scores = [(fut.result(), i) for i, (_, fut) in enumerate(pending)]
        keep = sorted(scores)[:max(1, len(trials) // 2)]
        trials = [trials[i] for _, i in keep]
        if rung == 1:
            trials.append(Trial(1e12, seed=99))  # wide exploration
        print(f"rung {rung}: best {keep[0][0]:.4f} of {len(scores)}", flush=True)
        rung += 1
    return trials[0]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--trials", type=int, default=16)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--rung-steps", type=int, default=60)
    a = ap.parse_args()
    signal.alarm(590)
    torch.set_num_threads(1)
    lrs = torch.logspace(-4, -1, a.trials).tolist()
    best = halving([Trial(lr, i) for i, lr in enumerate(lrs)], TrialPool(a.threads), a.rung_steps)
    print("best lr", best.lr)


if __name__ == "__main__":
    main()
