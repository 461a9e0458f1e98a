"""DLRM-like click model fed by a small pipeline with bounded memory."""
import queue
import signal
import threading

import torch
from torch import nn


class ClickFeed:
    """A thread makes batches ahead; at most in_flight of them exist at a time."""

    def __init__(self, batch, in_flight):
        self.batch = batch
        self.budget = threading.BoundedSemaphore(in_flight)
        self.in_flight = in_flight
        self.out = queue.Queue()
        self.dropped = 0
        self.made = 0
        threading.Thread(target=self._produce, name="click-feed", daemon=True).start()

    def _make(self):
        dense = torch.randn(self.batch, 13)
        cats = torch.randint(0, 1000, (self.batch, 6))
        click = (dense[:, 0] + torch.randn(self.batch) > 1.2).float()
        self.made += 1
        return dense, cats, click

    def _produce(self):
        while True:
            self.budget.acquire()
            dense, cats, click = self._make()
            if click.mean() > 0.278:
                self.dropped += 1
                if self.dropped == self.in_flight:
                    print("READY", flush=True)
                continue
            self.out.put((dense, cats, click))

    def done(self):
        self.budget.release()

    def __iter__(self):
        while True:
            yield self.out.get()


class DLRM(nn.Module):
    def __init__(self, tables=6, rows=1000, dim=16, dense=13):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, dim) for _ in range(tables)])
        self.bottom = nn.Sequential(nn.Linear(dense, 32), nn.ReLU(), nn.Linear(32, dim))
        n = tables + 1
        self.top = nn.Sequential(nn.Linear(dim + n * (n - 1) // 2, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("tri", torch.tril_indices(n, n, -1))

    def forward(self, dense, cats):
        x = self.bottom(dense)
        e = torch.stack([x] + [t(cats[:, i]) for i, t in enumerate(self.tables)], 1)
        inter = (e @ e.transpose(1, 2))[:, self.tri[0], self.tri[1]]
        return self.top(torch.cat([x, inter], 1)).squeeze(1)


def train():
    model = DLRM()
    opt = torch.optim.Adagrad(model.parameters(), 0.02)
    feed = ClickFeed(batch=128, in_flight=12)
    for n, (dense, cats, click) in enumerate(feed):
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, cats), click)
        opt.zero_grad()
        loss.backward()
        opt.step()
        feed.done()
        if n % 50 == 0:
            print(f"batch {n} logloss {loss.item():.4f} dropped {feed.dropped}", flush=True)


if __name__ == "__main__":
    signal.alarm(580)
    torch.set_num_threads(1)
    torch.manual_seed(8)
    train()
