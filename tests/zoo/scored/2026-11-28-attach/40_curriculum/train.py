"""Curriculum regression; the curriculum table is shared between runs through a lock file."""
import argparse
import json
import os
import pathlib
import signal
import tempfile
import time

import torch
import torch.nn as nn


class LockFile:
    def __init__(self, path, poll=0.25, tries=2200):
        self.path, self.poll, self.tries = path, poll, tries

    def __enter__(self):
        for _ in range(self.tries):
            try:
                self.fd = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
                return self
            except FileExistsError:
                time.sleep(self.poll)
        raise TimeoutError(self.path)

    def __exit__(self, kind, *_):
        os.close(self.fd)
        if kind is None:
            os.unlink(self.path)


class Curriculum:
    def __init__(self, folder):
        self.table = pathlib.Path(folder) / "table.json"
        self.lock = str(self.table) + ".lock"
        self.table.write_text(json.dumps({"level": 1, "hits": 0}))

    def advance(self, loss):
        with LockFile(self.lock):
            state = json.loads(self.table.read_text())
            state["hits"] += 1
            if state["hits"] % 5 == 0:
                state["level"] += 1
            if state["level"] > 4:
                raise KeyError(f"no level {state['level']}")
            self.table.write_text(json.dumps(state))
        return state["level"]


def batch(level, n=64):
    x = torch.rand(n, 4) * level
    return x, torch.sin(x).sum(1, keepdim=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=5000)
    ap.add_argument("--check-every", type=int, default=8)
    ap.add_argument("--lr", type=float, default=5e-3)
    args = ap.parse_args()
    signal.alarm(590)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    opt = torch.optim.Adam(net.parameters(), args.lr)
    with tempfile.TemporaryDirectory(prefix="curriculum_") as folder:
        curriculum, level = Curriculum(folder), 1
        for step in range(1, args.steps + 1):
            x, y = batch(level)
            loss = (net(x) - y).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % args.check_every == 0:
                try:
                    level = curriculum.advance(loss.item())
                except KeyError as err:
                    print("keeping level:", err, flush=True)
                    print("READY", flush=True)
            if step % 40 == 0:
                print(f"step {step} level {level} mse {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
