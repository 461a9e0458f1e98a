"""Noise2Noise denoiser with live statistics of its layers."""
import argparse
import signal
import time

import torch
import torch.nn as nn

from watch import LayerWatch


class Denoiser(nn.Module):
    def __init__(self, c=16, n=5):
        super().__init__()
        layers = [nn.Conv2d(1, c, 3, padding=1), nn.ReLU()]
        for _ in range(n):
            layers += [nn.Conv2d(c, c, 3, padding=1), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Conv2d(c, 1, 3, padding=1))

    def forward(self, x):
        return x - self.net(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--watchers", type=int, default=14)
    ap.add_argument("--watch-from", type=int, default=80)
    args = ap.parse_args()
    signal.alarm(580)
    torch.set_num_threads(1)
    torch.manual_seed(39)
    net = Denoiser()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    stats = {}
    t0 = time.time()
    for step in range(10 ** 6):
        if step == args.watch_from:
            for k in range(args.watchers):
                LayerWatch(k, stats).start()
        clean = torch.rand(args.batch, 1, 4, 4).repeat_interleave(6, 2).repeat_interleave(6, 3)
        a = clean + 0.2 * torch.randn_like(clean)
        b = clean + 0.2 * torch.randn_like(clean)
        loss = nn.functional.mse_loss(net(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        stats[step % 7] = loss.item()
        if step == args.watch_from + 1:
            print("READY", flush=True)
        if step % 20 == 0 or step > args.watch_from:
            print(f"step {step} mse {loss.item():.4f} {time.time() - t0:.1f} s", flush=True)


if __name__ == "__main__":
    main()
