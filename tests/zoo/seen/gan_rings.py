"""GAN on 2-D rings embedded in 16 dimensions, non-saturating loss."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


def mlp(i, o, d=64, n=3):
    layers = [nn.Linear(i, d), nn.LeakyReLU(0.2)]
    for _ in range(n - 1):
        layers += [nn.Linear(d, d), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Linear(d, o))


def rings(n, lift):
    r = torch.randint(1, 4, (n, 1)).float() + 0.05 * torch.randn(n, 1)
    a = torch.rand(n, 1) * 6.2832
    return torch.cat([r * a.cos(), r * a.sin()], 1) @ lift


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=140)
    args = ap.parse_args()
    torch.manual_seed(20)
    lift = torch.randn(2, 16)
    G, D = mlp(8, 16), mlp(16, 1)
    og = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    od = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    n = 4096
    for step in range(args.steps):
        real = rings(n, lift)
        fake = G(torch.randn(n, 8))
        # discriminator
        d_loss = F.softplus(-D(real)).mean() + F.softplus(D(fake.detach())).mean()
        od.zero_grad()
        d_loss.backward()
        od.step()
        # generator
        D.requires_grad_(False)
        g_loss = F.softplus(-D(fake)).mean()
        og.zero_grad()
        g_loss.backward()
        og.step()
        D.requires_grad_(True)
        if step % 50 == 0:
            print(step, d_loss.item(), g_loss.item())


if __name__ == "__main__":
    main()
