"""Pool-based active learning; the oracle is whoever drives the control pipe."""
import argparse
import os
import signal
import sys

import torch
import torch.nn as nn


def entropy(logits):
    p = logits.softmax(-1)
    return -(p * p.clamp_min(1e-9).log()).sum(-1)


class AutoOracle:
    """Labels from a fixed random teacher."""

    def __init__(self, dim, classes):
        self.w = torch.randn(dim, classes)

    def label(self, x):
        return (x @ self.w).argmax(-1)


class HumanOracle(AutoOracle):
    def label(self, x):
        guess = super().label(x)
        sys.stdout.write(f"confirm {len(x)} labels [y/n]: ")
        sys.stdout.flush()
        answer = sys.stdin.readline().strip()
        return guess if answer != "n" else guess.flip(0)


def attach_control():
    r, w = os.pipe()
    os.dup2(r, 0)
    return w


def fit(net, opt, xs, ys, steps):
    for _ in range(steps):
        i = torch.randint(0, len(xs), (64,))
        loss = nn.functional.cross_entropy(net(xs[i]), ys[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=20)
    p.add_argument("--classes", type=int, default=6)
    p.add_argument("--rounds", type=int, default=60)
    p.add_argument("--query", type=int, default=50)
    p.add_argument("--human-from", type=int, default=4)
    args = p.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    control = attach_control()
    torch.manual_seed(9)
    auto = AutoOracle(args.dim, args.classes)
    human = HumanOracle(args.dim, args.classes)
    human.w = auto.w
    pool = torch.randn(6000, args.dim)
    xs, ys = pool[:100], auto.label(pool[:100])
    net = nn.Sequential(nn.Linear(args.dim, 64), nn.ReLU(), nn.Linear(64, args.classes))
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    for r in range(args.rounds):
        loss = fit(net, opt, xs, ys, 40)
        with torch.no_grad():
            pick = entropy(net(pool)).topk(args.query).indices
        oracle = human if r >= args.human_from else auto
        if oracle is human:
            print("READY", flush=True)
        xs = torch.cat([xs, pool[pick]])
        ys = torch.cat([ys, oracle.label(pool[pick])])
        print(f"round {r} loss {loss:.3f} labeled {len(xs)}", flush=True)
    os.close(control)


if __name__ == "__main__":
    main()
