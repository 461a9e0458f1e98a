"""LSTM on tick bars; rank 0 keeps an audit trail of its predictions."""
import argparse
import os
import signal
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class NullTrail:
    def record(self, step, values):
        pass


class AuditTrail:
    """Append-only; each entry is on disk before the next is made."""

    def __init__(self, folder):
        self.out = tempfile.TemporaryFile("w", dir=folder)
        self.lines = 0

    def _entry(self, text):
        self.out.write(text)
        self.out.flush()
        os.fsync(self.out.fileno())
        self.lines += 1

    def record(self, step, values):
        for i, v in enumerate(values.tolist()):
            self._entry(f"{step}\t{i}\t{v:.8f}\n")


class TickLSTM(nn.Module):
    def __init__(self, features=5, hidden=32):
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, bars):
        h, _ = self.lstm(bars)
        return self.fc(h[:, -1]).squeeze(-1)


def bars(n, length, g):
    steps = 0.01 * torch.randn(n, length, 5, generator=g)
    return steps.cumsum(1), steps[:, -4:, 0].sum(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=600)
    ap.add_argument("--audit-from", type=int, default=70)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    here = os.path.dirname(os.path.abspath(__file__))
    model = DDP(TickLSTM())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    g = torch.Generator().manual_seed(rank)
    trail = NullTrail()
    step = 0
    while True:
        if step == args.audit_from and rank == 0:
            trail = AuditTrail(here)
        x, y = bars(args.batch, 12, g)
        pred = model(x)
        loss = nn.functional.huber_loss(pred, y)
        trail.record(step, pred.detach())
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if rank == 0 and step == args.audit_from + 3:
            print("\nREADY\n", end="", flush=True)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} huber {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
