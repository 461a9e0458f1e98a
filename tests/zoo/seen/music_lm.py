"""Symbolic music generator (GRU over note events) with resumable state."""
import argparse
import copy
import os
import tempfile
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F


class NoteLM(nn.Module):
    def __init__(self, events=20000, d=96, hidden=128):
        super().__init__()
        self.emb = nn.Embedding(events, d)
        self.rnn = nn.GRU(d, hidden, batch_first=True)
        self.proj = nn.Linear(hidden, d)
        self.bias = nn.Parameter(torch.zeros(events))

    def forward(self, x, negatives):
        h = self.proj(self.rnn(self.emb(x))[0])
        cand = self.emb(negatives)
        return h @ cand.T + self.bias[negatives]


def write_state(state, path):
    tmp = path + ".tmp"
    with open(tmp, "wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(tmp, path)


class Saver:
    """every: steps between two states on disk."""

    def __init__(self, path, every, background):
        self.path, self.every, self.background = path, every, background
        self.thread = None

    def __call__(self, step, model, opt):
        if step % self.every:
            return
        state = {"step": step, "model": model.state_dict(), "opt": opt.state_dict()}
        if not self.background:
            write_state(state, self.path)
            return
        self.wait()
        self.thread = threading.Thread(target=write_state, args=(copy.deepcopy(state), self.path))
        self.thread.start()

    def wait(self):
        if self.thread is not None:
            self.thread.join()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=150)
    args = ap.parse_args()
    torch.manual_seed(90)
    every = {1: 10, 2: 4, 3: 1}[args.level]
    model = NoteLM()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    song = torch.randint(0, 20_000, (50_000,))
    with tempfile.TemporaryDirectory() as out:
        save = Saver(os.path.join(out, "state.pt"), 100 if args.fixed else every, args.fixed)
        for step in range(1, args.steps + 1):
            at = torch.randint(0, len(song) - 49, (16, 1)) + torch.arange(49)
            seq = song[at]
            negatives, target = seq[:, 1:].reshape(-1).unique(return_inverse=True)
            logits = model(seq[:, :-1], negatives[:256])
            keep = target < 256
            loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1])[keep], target[keep])
            opt.zero_grad()
            loss.backward()
            opt.step()
            save(step, model, opt)
            if step % 50 == 0:
                print(step, loss.item())
        save.wait()


if __name__ == "__main__":
    main()
