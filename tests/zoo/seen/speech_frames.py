#!/usr/bin/env python
"""Phoneme classifier on mel frames fetched from an object store."""
import argparse
import os
import tempfile
import time

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

N_MEL, N_FRAMES, N_PHONE = 40, 80, 44
CLIP = N_MEL * N_FRAMES


class ClipStream(IterableDataset):
    """Every worker walks its own slice of the clips; one ranged GET per group of clips."""

    def __init__(self, path, n_clips, latency, group=8):
        self.path = path
        self.n_clips = n_clips
        self.latency = latency
        self.group = group

    def _ranged_get(self, fd, first):
        blob = os.pread(fd, CLIP * self.group, first * CLIP)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        time.sleep(self.latency)
        return np.frombuffer(blob, np.uint8).reshape(self.group, N_FRAMES, N_MEL)

    def __iter__(self):
        info = get_worker_info()
        wid, n = (info.id, info.num_workers) if info else (0, 1)
        rng = np.random.default_rng(100 + wid)
        fd = os.open(self.path, os.O_RDONLY)
        while True:  # endless, shuffled by group
            first = int(rng.integers(0, self.n_clips // self.group)) * self.group
            clips = self._ranged_get(fd, first)
            for k in range(self.group):
                x = (clips[k].astype(np.float32) - 128.0) / 64.0
                yield torch.from_numpy(x), (first + k) % N_PHONE


class PhoneNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(N_MEL, 96)
        self.rnn = nn.GRU(96, 96, batch_first=True, bidirectional=False)
        self.head = nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, N_PHONE))

    def forward(self, x):
        h, _ = self.rnn(torch.tanh(self.inp(x)))
        return self.head(h.mean(1))


def run(opts):
    torch.manual_seed(opts.seed)
    latency = {1: 0.0052, 2: 0.0068, 3: 0.013}[opts.level]
    workers = 4 if opts.fixed else 1
    n_clips = 1600
    tmp = tempfile.NamedTemporaryFile()
    tmp.write(np.random.default_rng(3).integers(0, 255, n_clips * CLIP, dtype=np.uint8).tobytes())
    tmp.flush()

    loader = DataLoader(ClipStream(tmp.name, n_clips, latency), batch_size=32,
                        num_workers=workers, prefetch_factor=4, persistent_workers=True)
    model = PhoneNet()
    opt = optim.Adam(model.parameters(), lr=opts.lr, fused=True)
    ce = nn.CrossEntropyLoss(label_smoothing=0.1)
    stream = iter(loader)
    for step in range(opts.steps):
        x, y = next(stream)
        opt.zero_grad()
        loss = ce(model(x), y)
        loss.backward()
        opt.step()
        if (step + 1) % 50 == 0:
            print(step + 1, round(loss.item(), 4), flush=True)
    tmp.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=[1, 2, 3], default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=11)
    run(parser.parse_args())
