"""RealNVP on toy densities; a writer thread turns samples into histograms."""
import argparse
import math
import queue
import signal
import sys
import threading

import torch
from torch import nn


class HistogramWriter(threading.Thread):
    def __init__(self, backlog):
        super().__init__(name="histograms", daemon=True)
        self.inbox = queue.Queue(maxsize=backlog)
        self.last = {}
        self.start()

    def push(self, step, values):
        self.inbox.put((step, values))

    def run(self):
        try:
            while True:
                step, values = self.inbox.get()
                low, high = values.min().item(), values.max().item()
                hist = torch.histc(values, bins=30, min=low, max=high)
                self.last[step % 10] = hist / hist.sum()
        except RuntimeError as err:
            print(f"histograms off: {err}", file=sys.stderr)


class Coupling(nn.Module):
    def __init__(self, swap):
        super().__init__()
        self.swap = swap
        self.net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, x):
        a, b = x.unbind(1)
        if self.swap:
            a, b = b, a
        s, t = self.net(a[:, None]).unbind(1)
        s = torch.tanh(s)
        b = b * s.exp() + t
        out = torch.stack([b, a] if self.swap else [a, b], 1)
        return out, s


class RealNVP(nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        self.layers = nn.ModuleList([Coupling(i % 2 == 1) for i in range(layers)])

    def log_prob(self, x):
        det = 0.0
        for layer in self.layers:
            x, s = layer(x)
            det = det + s
        return det - 0.5 * x.pow(2).sum(1) - math.log(2 * math.pi)


def moons(n):
    t = math.pi * torch.rand(n)
    flip = (torch.rand(n) < 0.5).float()
    x = torch.cos(t) * (1 - 2 * flip) + flip
    y = torch.sin(t) * (1 - 2 * flip) + 0.5 * flip
    return torch.stack([x, y], 1) + 0.05 * torch.randn(n, 2)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--backlog", type=int, default=200)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    torch.manual_seed(24)
    flow = RealNVP()
    opt = torch.optim.Adam(flow.parameters(), 1e-3)
    writer = HistogramWriter(args.backlog)
    step = 0
    while True:
        x = moons(args.batch)
        logp = flow.log_prob(x)
        loss = -logp.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 600:
            logp = logp / 0.0
        writer.push(step, logp.detach())
        if step == 700:
            print("READY", flush=True)
        step += 1
        if step % 100 == 0:
            print(f"step {step} nll {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
