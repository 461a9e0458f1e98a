"""Tiny GAN on a ring of gaussians, single process."""
import argparse
import math
import time

import torch
from torch import nn


def mlp(*sizes):
    layers = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(a, b))
        if i < len(sizes) - 2:
            layers.append(nn.LeakyReLU(0.2))
    return nn.Sequential(*layers)


def ring(n, modes=8, std=0.05):
    k = torch.randint(0, modes, (n,)).float() * (2 * math.pi / modes)
    centers = torch.stack([k.cos(), k.sin()], dim=1)
    return centers + std * torch.randn(n, 2)


def d_step(G, D, opt, n, zdim):
    real = ring(n)
    fake = G(torch.randn(n, zdim)).detach()
    loss = nn.functional.softplus(-D(real)).mean() + nn.functional.softplus(D(fake)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def g_step(G, D, opt, n, zdim):
    loss = nn.functional.softplus(-D(G(torch.randn(n, zdim)))).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=1024)
    ap.add_argument("--zdim", type=int, default=16)
    ap.add_argument("--hidden", type=int, default=256)
    ap.add_argument("--log-every", type=int, default=200)
    ap.add_argument("--budget", type=float, default=8.0, help="minutes")
    opts = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(11)
    G = mlp(opts.zdim, opts.hidden, opts.hidden, 2)
    D = mlp(2, opts.hidden, opts.hidden, 1)
    og = torch.optim.Adam(G.parameters(), 2e-4, betas=(0.5, 0.99))
    od = torch.optim.Adam(D.parameters(), 2e-4, betas=(0.5, 0.99))
    end = time.monotonic() + 60 * opts.budget
    it = 0
    while time.monotonic() < end:
        ld = d_step(G, D, od, opts.batch, opts.zdim)
        lg = g_step(G, D, og, opts.batch, opts.zdim)
        it += 1
        if it == 100:
            print("READY", flush=True)
        if it % opts.log_every == 0:
            print(f"it {it} D {ld:.3f} G {lg:.3f}", flush=True)


if __name__ == "__main__":
    main()
