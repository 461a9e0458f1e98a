"""Knowledge distillation: rank 1 is the teacher and leaves logits on disk, rank 0 the student."""
import argparse
import os
import pathlib
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn


def make_mlp(width):
    return nn.Sequential(nn.Linear(40, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                         nn.Linear(width, 12))


class LogitStore:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.root.mkdir(parents=True, exist_ok=True)

    def path(self, shard):
        return self.root / f"logits_{shard:04d}.pt"

    def put(self, shard, x, logits):
        tmp = self.path(shard).with_suffix(".part")
        torch.save((x, logits), tmp)
        tmp.rename(self.path(shard))

    def get(self, shard, tries=1100):
        for _ in range(tries):
            if self.path(shard).exists():
                break
            time.sleep(0.5)  # teacher is behind
        x, logits = torch.load(self.path(shard))
        self.path(shard).unlink()
        return x, logits


def teacher_loop(store, shards):
    net = make_mlp(256).eval()
    with torch.no_grad():
        for s in range(shards):
            x = torch.randn(512, 40)
            store.put(s, x, net(x))
            if s == 30:
                print("READY", flush=True)
                os._exit(0)


def student_loop(store, shards, batch, lr):
    net = make_mlp(64)
    opt = torch.optim.Adam(net.parameters(), lr)
    for s in range(shards):
        x, logits = store.get(s)
        for xb, lb in zip(x.split(batch), logits.split(batch)):
            loss = nn.functional.kl_div(net(xb).log_softmax(1), lb.softmax(1), reduction="batchmean")
            opt.zero_grad()
            loss.backward()
            opt.step()
        if s % 10 == 0:
            print(f"shard {s} kl {loss.item():.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--shards", type=int, default=400)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--lr", type=float, default=1e-3)
    a = ap.parse_args()
    signal.alarm(595)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=9))
    store = LogitStore(f"/tmp/kd_{os.environ['MASTER_PORT']}_{os.getppid()}")
    dist.barrier()
    if dist.get_rank() == 1:
        teacher_loop(store, a.shards)
    else:
        student_loop(store, a.shards, a.batch, a.lr)


if __name__ == "__main__":
    main()
