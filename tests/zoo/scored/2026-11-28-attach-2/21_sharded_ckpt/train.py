"""Embedding-heavy model with a checkpoint after each round."""
import argparse
import os
import shutil
import signal
import time

import torch
import torch.nn as nn

from snapshot import write_snapshot


class Factor(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.table = nn.Embedding(rows, dim, sparse=True)
        self.mlp = nn.Sequential(nn.Linear(dim * 2, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, a, b):
        return self.mlp(torch.cat([self.table(a), self.table(b)], -1)).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=1_450_000)
    ap.add_argument("--dim", type=int, default=128)
    ap.add_argument("--steps-per-round", type=int, default=60)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    net = Factor(args.rows, args.dim)
    opt = torch.optim.SGD(net.parameters(), 0.05)
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "snapshots")
    shutil.rmtree(folder, ignore_errors=True)
    begin = time.time()
    for rnd in range(1000):
        for _ in range(args.steps_per_round):
            a, b = torch.randint(args.rows, (2, 256))
            loss = nn.functional.binary_cross_entropy_with_logits(net(a, b), ((a + b) % 2).float())
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"round {rnd} loss {loss.item():.3f} at {time.time() - begin:.0f} s", flush=True)
        if rnd == 0:
            print("READY", flush=True)
        write_snapshot(net.state_dict(), os.path.join(folder, f"round_{rnd:04d}"))
        shutil.rmtree(folder)
        if time.time() - begin > 420:
            break


if __name__ == "__main__":
    main()
