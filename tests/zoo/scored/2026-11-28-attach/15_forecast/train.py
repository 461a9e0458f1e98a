"""One-step-ahead forecasting with a temporal conv net."""
import argparse
import time

import torch
import torch.nn as nn


class TCN(nn.Module):
    def __init__(self, ch=32, levels=4):
        super().__init__()
        layers, c = [], 1
        for i in range(levels):
            d = 2 ** i
            layers += [nn.ConstantPad1d((2 * d, 0), 0.0), nn.Conv1d(c, ch, 3, dilation=d), nn.ReLU()]
            c = ch
        self.net = nn.Sequential(*layers, nn.Conv1d(ch, 1, 1))

    def forward(self, x):
        return self.net(x)


class Pacer:
    """Keeps the job polite on a shared machine."""

    def __init__(self, free_steps, pause):
        self.free_steps = free_steps
        self.pause = pause
        self.n = 0

    def tick(self):
        self.n += 1
        if self.n > self.free_steps:
            time.sleep(self.pause)


def series(batch, length):
    t = torch.arange(length + 1).float()
    phase = torch.rand(batch, 1) * 6.28
    freq = 0.05 + 0.2 * torch.rand(batch, 1)
    y = torch.sin(freq * t + phase) + 0.1 * torch.randn(batch, length + 1)
    return y[:, None, :-1], y[:, None, 1:]


def fit(net, opt, pacer, args):
    start = time.time()
    for step in range(args.steps):
        x, y = series(args.batch, args.length)
        loss = nn.functional.smooth_l1_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        pacer.tick()
        if step == args.free_steps + 4:
            print("READY", flush=True)
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} t {time.time() - start:.0f}s", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--length", type=int, default=96)
    ap.add_argument("--steps", type=int, default=600)
    ap.add_argument("--free-steps", type=int, default=40)
    ap.add_argument("--pause", type=float, default=0.9)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = TCN()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    fit(net, opt, Pacer(args.free_steps, args.pause), args)


if __name__ == "__main__":
    main()
