"""Contextual bandit: a simulator thread and the trainer share one table of rewards."""
import argparse
import threading
import time

import torch
import torch.nn as nn


class RewardTable:
    def __init__(self, users, arms):
        self.mutex = threading.Lock()
        self.values = torch.zeros(users, arms)

    def lookup(self, users):
        with self.mutex:
            return self.values[users].clone()


class Simulator(threading.Thread):
    def __init__(self, table, warm):
        super().__init__(daemon=True, name="simulator")
        self.table, self.warm = table, warm
        self.begin = threading.Event()

    def run(self):
        self.begin.wait()
        while True:
            with self.table.mutex:
                self.advance()
            time.sleep(0.0005)

    def advance(self):
        noise = torch.randn_like(self.table.values)
        time.sleep(0.8)  # round trip of the simulator
        self.table.values.mul_(0.95).add_(noise, alpha=0.05)


class Policy(nn.Module):
    def __init__(self, users, arms, dim=32):
        super().__init__()
        self.u = nn.Embedding(users, dim)
        self.f = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, arms))

    def forward(self, users):
        return self.f(self.u(users))


def train_step(policy, opt, table, users):
    reward = table.lookup(users)
    probs = policy(users).softmax(-1)
    loss = -(probs * reward).sum(-1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--users", type=int, default=1000)
    ap.add_argument("--arms", type=int, default=8)
    ap.add_argument("--warm", type=int, default=120)
    ap.add_argument("--minutes", type=float, default=8)
    args = ap.parse_args()
    torch.set_num_threads(1)
    table = RewardTable(args.users, args.arms)
    sim = Simulator(table, args.warm)
    sim.start()
    policy = Policy(args.users, args.arms)
    opt = torch.optim.Adam(policy.parameters(), 1e-3)
    stop_at = time.time() + args.minutes * 60
    n = 0
    while time.time() < stop_at:
        value = train_step(policy, opt, table, torch.randint(0, args.users, (64,)))
        n += 1
        if n == args.warm:
            sim.begin.set()
        if n == args.warm + 5:
            print("READY", flush=True)
        if n % 20 == 0:
            print(f"{n} objective {value:.4f}", flush=True)


if __name__ == "__main__":
    main()
