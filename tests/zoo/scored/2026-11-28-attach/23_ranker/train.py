"""Pairwise ranking model; popularity statistics are refreshed in the background on rank 0."""
import argparse
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

import popularity
from pairs import PairDataset


class Scorer(nn.Module):
    def __init__(self, items, dim=32):
        super().__init__()
        self.item = nn.Embedding(items, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, pos, neg):
        return self.mlp(self.item(pos)) - self.mlp(self.item(neg))


def bound(worker_id):
    signal.alarm(565)


class RankTrainer:
    def __init__(self, opts):
        self.opts = opts
        self.rank = dist.get_rank()
        self.model = DDP(Scorer(opts.items))
        self.opt = torch.optim.Adagrad(self.model.parameters(), 0.05)
        self.data = PairDataset(opts.items, 640, seed=self.rank)

    def loader(self):
        return DataLoader(self.data, batch_size=32, num_workers=1, worker_init_fn=bound,
                          multiprocessing_context="fork")

    def epoch(self, e):
        if self.rank == 0 and e == self.opts.refresh_epoch:
            popularity.refresh_async(self.opts.items)
            print("READY", flush=True)
        for pos, neg in self.loader():
            margin = self.model(pos, neg)
            loss = nn.functional.softplus(-margin).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--items", type=int, default=500)
    ap.add_argument("--epochs", type=int, default=50)
    ap.add_argument("--refresh-epoch", type=int, default=3)
    opts = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=9))
    trainer = RankTrainer(opts)
    for e in range(opts.epochs):
        value = trainer.epoch(e)
        if trainer.rank == 0:
            print(f"epoch {e} loss {value:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
