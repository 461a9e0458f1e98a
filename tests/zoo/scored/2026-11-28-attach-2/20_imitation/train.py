"""Behaviour cloning; a second process rates each published version of the policy."""
import signal

import torch
import torch.multiprocessing as mp
from torch import nn

from rating import Board, rater


def policy():
    return nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))


class Cloner:
    def __init__(self, board, net):
        self.board, self.net = board, net
        self.opt = torch.optim.Adam(net.parameters(), 1e-3)

    def expert(self, s):
        return (s[:, :3] + 0.5 * s[:, 3:6]).argmax(1)

    def train_round(self, steps):
        for _ in range(steps):
            s = torch.randn(64, 10)
            loss = nn.functional.cross_entropy(self.net(s), self.expert(s))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return loss.item()

    def run(self):
        version = 0
        while True:
            loss = self.train_round(60)
            version += 1
            if version == 9:
                print("READY", flush=True)
            score = self.publish(version)
            print(f"version {version} loss {loss:.3f} rated {score:.3f}", flush=True)

    def publish(self, version):
        with self.board.turn:
            self.board.version.value = version
            self.board.turn.notify_all()
            self.board.turn.wait()
        return self.board.score.value


if __name__ == "__main__":
    signal.alarm(580)
    torch.set_num_threads(1)
    net = policy().share_memory()
    board = Board(mp.get_context("spawn"))
    proc = board.ctx.Process(target=rater, args=(board.pack(), net), daemon=True)
    proc.start()
    board.up.wait()
    Cloner(board, net).run()
