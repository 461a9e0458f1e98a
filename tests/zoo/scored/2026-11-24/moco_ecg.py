"""Momentum-contrast pre-training on one-lead ECG-like traces."""
import copy
import time
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

opts = SimpleNamespace(
    traces=3000, length=256, batch=64, steps=150, width=32, proj=64,
    queue=2048, tau=0.2, momentum=0.99, lr=0.06, wd=1e-4, seed=31, log=30,
)


class ResUnit(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(cin, cout, 7, stride=2, padding=3, bias=False), nn.BatchNorm1d(cout), nn.ReLU(inplace=True),
            nn.Conv1d(cout, cout, 5, padding=2, bias=False), nn.BatchNorm1d(cout),
        )
        self.skip = nn.Conv1d(cin, cout, 1, stride=2, bias=False)

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x), inplace=True)


class Encoder(nn.Module):
    def __init__(self, width, proj):
        super().__init__()
        w = width
        self.stem = nn.Sequential(nn.Conv1d(1, w, 7, padding=3, bias=False), nn.BatchNorm1d(w), nn.ReLU(inplace=True))
        self.units = nn.Sequential(ResUnit(w, w), ResUnit(w, 2 * w), ResUnit(2 * w, 2 * w), ResUnit(2 * w, 4 * w))
        self.head = nn.Sequential(nn.Linear(4 * w, 4 * w), nn.ReLU(inplace=True), nn.Linear(4 * w, proj))

    def forward(self, x):
        return F.normalize(self.head(self.units(self.stem(x)).mean(-1)), dim=1)


class MomentumContrast:
    def __init__(self, o):
        self.query = Encoder(o.width, o.proj)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.queue = F.normalize(torch.randn(o.proj, o.queue), dim=0)
        self.ptr, self.o = 0, o
        self.pairs = (list(self.key.parameters()), list(self.query.parameters()))

    @torch.no_grad()
    def update_key(self):
        torch._foreach_lerp_(*self.pairs, 1 - self.o.momentum)

    @torch.no_grad()
    def enqueue(self, k):
        self.queue[:, self.ptr:self.ptr + len(k)] = k.t()
        self.ptr = (self.ptr + len(k)) % self.o.queue

    def loss(self, view_q, view_k):
        q = self.query(view_q)
        with torch.no_grad():
            k = self.key(view_k)
        pos = (q * k).sum(1, keepdim=True)
        logits = torch.cat([pos, q @ self.queue.clone()], 1) / self.o.tau
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long)), k


def synth_ecg(o):
    g = torch.Generator().manual_seed(o.seed)
    t = torch.linspace(0, 4, o.length)
    rate = 0.8 + 0.8 * torch.rand(o.traces, 1, generator=g)
    beat = (t * rate + torch.rand(o.traces, 1, generator=g)) % 1.0
    trace = 0.05 * torch.randn(o.traces, o.length, generator=g)
    for centre, spread in ((0.2, 0.03), (0.37, 0.008), (0.4, 0.01), (0.43, 0.008), (0.65, 0.05)):
        amp = torch.randn(o.traces, 1, generator=g)
        trace += amp * torch.exp(-((beat - centre) / spread) ** 2 / 2)
    return trace.unsqueeze(1)


def view(x):
    """Random gain, baseline wander, jitter in time and white noise, for the whole batch at once."""
    n, _, length = x.shape
    shift = torch.randint(-16, 17, (n, 1))
    idx = (torch.arange(length) + shift) % length
    x = x.gather(2, idx.unsqueeze(1))
    wander = torch.sin(torch.linspace(0, 6.28, length) + 6.28 * torch.rand(n, 1, 1))
    return x * (0.7 + 0.6 * torch.rand(n, 1, 1)) + 0.2 * wander + 0.1 * torch.randn_like(x)


def main(o):
    torch.manual_seed(o.seed)
    traces = synth_ecg(o)
    moco = MomentumContrast(o)
    opt = torch.optim.SGD(moco.query.parameters(), o.lr, momentum=0.9, weight_decay=o.wd, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, o.steps)
    per_epoch = len(traces) // o.batch
    run, tic = torch.zeros(()), time.time()
    for step in range(o.steps):
        if step % per_epoch == 0:
            order = torch.randperm(len(traces))
        at = step % per_epoch * o.batch
        x = traces[order[at:at + o.batch]]
        loss, k = moco.loss(view(x), view(x))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        moco.update_key()
        moco.enqueue(k)
        run += loss.detach()
        if (step + 1) % o.log == 0:
            print(f"step {step + 1} infonce {run.item() / o.log:.3f} {time.time() - tic:.1f}s", flush=True)
            run.zero_()


if __name__ == "__main__":
    main(opts)
