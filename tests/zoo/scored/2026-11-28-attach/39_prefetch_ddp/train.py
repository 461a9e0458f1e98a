import argparse
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prefetch import Prefetcher, RecordFile


class KeypointNet(nn.Module):
    def __init__(self, pts=5):
        super().__init__()
        self.f = nn.Sequential(nn.Conv1d(2, 32, 5, padding=2), nn.ReLU(), nn.Conv1d(32, 32, 5, padding=2),
                               nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 2 * pts))

    def forward(self, x):
        return self.f(x)


class Experiment:
    def __init__(self, opts):
        self.opts = opts
        self.rank = dist.get_rank()
        self.net = DistributedDataParallel(KeypointNet())
        self.optim = torch.optim.AdamW(self.net.parameters(), opts.lr)

    def source(self):
        broken = self.opts.broken if self.rank == 1 else None
        records = RecordFile(self.opts.records, seed=self.rank, broken=broken)
        return Prefetcher(records, self.opts.batch, depth=3)

    def run(self):
        for i, (x, y) in enumerate(self.source()):
            loss = nn.functional.smooth_l1_loss(self.net(x), y)
            self.optim.zero_grad(set_to_none=True)
            loss.backward()
            self.optim.step()
            if i % 20 == 0 and self.rank == 0:
                print(f"batch {i} loss {loss.item():.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--records", type=int, default=64000)
    ap.add_argument("--broken", type=int, default=1500)
    opts = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group(backend="gloo", timeout=timedelta(minutes=9))
    torch.manual_seed(0)
    Experiment(opts).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
