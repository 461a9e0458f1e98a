"""Sensor anomaly model; state goes to disk every 200 steps."""
import argparse
import os
import tempfile

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.rnn = nn.GRU(10, d, batch_first=True)
        self.out = nn.Linear(d, 10)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=420)
    args = ap.parse_args()
    torch.manual_seed(50)
    x = torch.randn(500, 41, 10).cumsum(1) * 0.1
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    with tempfile.TemporaryDirectory() as out:
        for step in range(1, args.steps + 1):
            b = x[torch.randint(0, 500, (96,))]
            loss = (net(b[:, :-1]) - b[:, 1:]).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 200 == 0:
                torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "step": step},
                           os.path.join(out, "last.pt"))
                print("saved at", step, "loss", loss.item())


if __name__ == "__main__":
    main()
