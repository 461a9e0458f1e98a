"""Dyna-Q on a maze: the agent learns online, a planner thread replays the model."""
import random
import signal
import threading

import torch
from torch import nn


class WorldModel:
    def __init__(self):
        self.seen = {}
        self.table_lock = threading.Lock()
        self.rng = random.Random(1)

    def observe(self, s, a, r, s2, weights_lock):
        with self.table_lock:
            surprise = self.seen.get((s, a)) != (r, s2)
            self.seen[s, a] = (r, s2)
            priorities = torch.rand(400, 400).softmax(1).sum().item()
            with weights_lock:  # no update while priorities change
                return surprise, priorities

    def sample(self, n):
        with self.table_lock:  # copy of a few rows
            keys = self.rng.choices(list(self.seen), k=n)
            rows = [(s, a, *self.seen[s, a]) for s, a in keys]
        s, a, r, s2 = zip(*rows)
        return torch.tensor(s), torch.tensor(a), torch.tensor(r), torch.tensor(s2)


class Planner(threading.Thread):
    def __init__(self, world, net, opt, loss):
        super().__init__(name="planner", daemon=True)
        self.world, self.net, self.opt, self.loss = world, net, opt, loss
        self.weights_lock = threading.Lock()

    def run(self):
        while True:
            with self.weights_lock:
                loss = self.loss(self.net, *self.world.sample(32))
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()


N = 8


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(N * N, 24)
        self.q = nn.Linear(24, 4)

    def forward(self, s):
        return self.q(self.e(s))


def move(s, a):
    r, c = divmod(s, N)
    r = min(N - 1, max(0, r + (a == 0) - (a == 1)))
    c = min(N - 1, max(0, c + (a == 2) - (a == 3)))
    return r * N + c


def td_loss(net, s, a, r, s2):
    with torch.no_grad():
        target = r + 0.95 * net(s2).max(1).values
    return nn.functional.smooth_l1_loss(net(s).gather(1, a[:, None])[:, 0], target)


def main(planner_from=300):
    signal.alarm(580)
    torch.set_num_threads(1)
    torch.manual_seed(38)
    net = QNet()
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    world = WorldModel()
    planner = Planner(world, net, opt, td_loss)
    s, total = 0, 0.0
    for step in range(10 ** 7):
        if step == planner_from:
            print("READY", flush=True)
            planner.start()
        with torch.no_grad():
            a = int(torch.randint(4, ()) if torch.rand(()) < 0.2 else net(torch.tensor([s])).argmax())
        s2 = move(s, a)
        r = 1.0 if s2 == N * N - 1 else -0.01
        world.observe(s, a, r, s2, planner.weights_lock)
        total += r
        s = 0 if r > 0 else s2
        if step % 100 == 0:
            print(f"step {step} reward {total:.2f} known {len(world.seen)}", flush=True)


if __name__ == "__main__":
    main()
