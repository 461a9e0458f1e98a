"""WGAN-GP on two-dimensional density images: several critic steps per generator step."""
import argparse
import itertools
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def densities(n, size, g):
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    out = torch.zeros(n, size, size)
    for _ in range(3):
        mx, my = torch.rand(2, n, 1, 1, generator=g) * 1.4 - 0.7
        out += torch.exp(-((xx - mx) ** 2 + (yy - my) ** 2) * 15)
    return out.clamp(max=1).unsqueeze(1) * 2 - 1


def endless(data, batch, g):
    while True:
        for rows in torch.randperm(len(data), generator=g).split(batch):
            if len(rows) == batch:
                yield data[rows]


class Generator(nn.Module):
    def __init__(self, z, w):
        super().__init__()
        self.fc = nn.Linear(z, 4 * w * 16)
        self.w = w
        self.net = nn.Sequential(
            nn.BatchNorm2d(4 * w), nn.ReLU(), nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1),
            nn.BatchNorm2d(2 * w), nn.ReLU(), nn.ConvTranspose2d(2 * w, w, 4, 2, 1),
            nn.BatchNorm2d(w), nn.ReLU(), nn.ConvTranspose2d(w, 1, 4, 2, 1), nn.Tanh())

    def forward(self, z):
        return self.net(self.fc(z).view(-1, 4 * self.w, 4, 4))


def make_critic(w):
    return nn.Sequential(nn.Conv2d(1, w, 4, 2, 1), nn.LeakyReLU(0.2),
                         nn.Conv2d(w, 2 * w, 4, 2, 1), nn.LeakyReLU(0.2),
                         nn.Conv2d(2 * w, 4 * w, 4, 2, 1), nn.LeakyReLU(0.2),
                         nn.Flatten(), nn.Linear(4 * w * 16, 1))


def gradient_penalty(critic, real, fake):
    eps = torch.rand(len(real), 1, 1, 1)
    mixed = torch.lerp(fake, real, eps).requires_grad_(True)
    grad, = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return ((grad.flatten(1).norm(dim=1) - 1) ** 2).mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=60)
    p.add_argument("--n-critic", type=int, default=4)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--z", type=int, default=48)
    p.add_argument("--width", type=int, default=32)
    p.add_argument("--gp", type=float, default=10.0)
    p.add_argument("--seed", type=int, default=64)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    real_batches = endless(densities(4096, 32, g), args.batch, g)
    gen, critic = Generator(args.z, args.width), make_critic(args.width)
    opt_g = torch.optim.Adam(gen.parameters(), lr=2e-4, betas=(0.0, 0.9), fused=True)
    opt_c = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.0, 0.9), fused=True)
    t0 = time.time()
    for rnd in range(args.rounds):
        for real in itertools.islice(real_batches, args.n_critic):
            with torch.no_grad():
                fake = gen(torch.randn(args.batch, args.z))
            wasserstein = critic(fake).mean() - critic(real).mean()
            loss_c = wasserstein + args.gp * gradient_penalty(critic, real, fake)
            opt_c.zero_grad()
            loss_c.backward()
            opt_c.step()
        critic.requires_grad_(False)
        loss_g = -critic(gen(torch.randn(args.batch, args.z))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        critic.requires_grad_(True)
        if rnd % 5 == 0:
            print(f"round {rnd} critic {loss_c.item():.3f} gen {loss_g.item():.3f} "
                  f"w {-wasserstein.item():.3f} {time.time() - t0:.1f}s", flush=True)


if __name__ == "__main__":
    main()
