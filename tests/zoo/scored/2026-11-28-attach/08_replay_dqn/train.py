import argparse
import random
import signal
import threading

import torch
import torch.nn as nn

from replay import ReplayBuffer


class QNet(nn.Module):
    def __init__(self, obs=8, acts=4, h=64):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(obs, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(),
                               nn.Linear(h, acts))

    def forward(self, s):
        return self.f(s)


class Actor(threading.Thread):
    """Steps a random environment and feeds the buffer."""

    def __init__(self, buffer, stop):
        super().__init__(daemon=True)
        self.buffer, self.stop = buffer, stop

    def run(self):
        s = torch.randn(8)
        while not self.stop.is_set():
            a = random.randrange(4)
            s2 = 0.9 * s + 0.1 * torch.randn(8)
            self.buffer.add((s, a, float(s2[a]), s2))
            s = s2
            self.stop.wait(0.002)


class Learner:
    def __init__(self, cfg, buffer):
        self.cfg, self.buffer = cfg, buffer
        self.q, self.target = QNet(), QNet()
        self.opt = torch.optim.Adam(self.q.parameters(), cfg.lr)

    def update(self):
        idx, (s, a, r, s2) = self.buffer.sample(self.cfg.batch)
        with torch.no_grad():
            y = r + 0.97 * self.target(s2).max(1).values
        td = self.q(s).gather(1, a[:, None]).squeeze(1) - y
        self.opt.zero_grad()
        td.pow(2).mean().backward()
        self.opt.step()
        return idx, td.detach().abs()

    def learn(self):
        for n in range(self.cfg.updates):
            idx, td = self.update()
            if n == self.cfg.prioritize_after:
                print("READY", flush=True)
            if n >= self.cfg.prioritize_after:
                self.buffer.reprioritize(idx, td)
            if n % 50 == 0:
                self.target.load_state_dict(self.q.state_dict())
                print(f"update {n} |td| {td.mean():.3f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--updates", type=int, default=200000)
    ap.add_argument("--prioritize-after", type=int, default=150)
    cfg = ap.parse_args()
    signal.alarm(595)
    torch.set_num_threads(1)
    stop = threading.Event()
    buffer = ReplayBuffer(20000)
    actor = Actor(buffer, stop)
    actor.start()
    while len(buffer.items) < 2 * cfg.batch:
        stop.wait(0.05)
    Learner(cfg, buffer).learn()
    stop.set()
    actor.join(5)


if __name__ == "__main__":
    main()
