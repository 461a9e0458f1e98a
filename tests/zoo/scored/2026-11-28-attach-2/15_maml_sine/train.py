"""First-order MAML on sinusoids."""
import argparse
import copy
import math
import signal

import torch
from torch import nn


def task(k=20):
    amp, phase = 0.1 + 4.9 * torch.rand(1), math.pi * torch.rand(1)
    x = 10 * torch.rand(k, 1) - 5
    return x, amp * torch.sin(x + phase)


def network():
    return nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))


class MetaLearner:
    def __init__(self, inner_lr=0.01, meta_lr=1e-3, inner_steps=2):
        self.net = network()
        self.opt = torch.optim.Adam(self.net.parameters(), meta_lr)
        self.inner_lr, self.inner_steps = inner_lr, inner_steps

    def adapt(self, x, y, steps):
        fast = copy.deepcopy(self.net)
        for _ in range(steps):
            grads = torch.autograd.grad(nn.functional.mse_loss(fast(x), y), list(fast.parameters()))
            with torch.no_grad():
                for p, g in zip(fast.parameters(), grads):
                    p -= self.inner_lr * g
        return fast

    def step(self, tasks):
        self.opt.zero_grad()
        total = 0.0
        for x, y in tasks:
            fast = self.adapt(x[:10], y[:10], self.inner_steps)
            loss = nn.functional.mse_loss(fast(x[10:]), y[10:])
            grads = torch.autograd.grad(loss, list(fast.parameters()))
            for p, g in zip(self.net.parameters(), grads):
                p.grad = g / len(tasks) if p.grad is None else p.grad + g / len(tasks)
            total += loss.item() / len(tasks)
        self.opt.step()
        return total

    def evaluate(self, held_out):
        errors = []
        for x, y in held_out:
            adapted = self.adapt(x[:10], y[:10], 10)
            with torch.no_grad():
                errors.append(nn.functional.mse_loss(adapted(x[10:]), y[10:]).item())
        return sum(errors) / len(errors)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tasks", type=int, default=4)
    ap.add_argument("--held-out", type=int, default=300)
    ap.add_argument("--eval-every", type=int, default=100)
    ap.add_argument("--fine-from", type=int, default=200)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    learner = MetaLearner()
    held_out = [task() for _ in range(args.held_out)]
    best, every, step = float("inf"), args.eval_every, 0
    while True:
        loss = learner.step([task() for _ in range(args.tasks)])
        step += 1
        if step >= args.fine_from:
            every = 1
        if step == args.fine_from + 1:
            print("READY", flush=True)
        if step % every == 0:
            score = learner.evaluate(held_out)
            best = min(best, score)
            print(f"step {step} meta loss {loss:.3f} held-out {score:.3f} best {best:.3f}", flush=True)


if __name__ == "__main__":
    main()
