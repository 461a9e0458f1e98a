"""Generative adversarial network on a two-dimensional spiral lifted to 64 dimensions."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def net(inputs, outputs, width=512):
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, outputs),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=160)
    args = parser.parse_args()
    torch.manual_seed(0)

    lift = torch.randn(2, 64)
    generator, critic = net(16, 64), net(64, 1)
    g_opt = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    c_opt = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    ones, zeros = torch.ones(192, 1), torch.zeros(192, 1)
    for _ in range(args.steps):
        angle = torch.rand(192, 1) * 12
        real = torch.cat([angle.cos() * angle, angle.sin() * angle], 1) @ lift / 12
        fake = generator(torch.randn(192, 16))

        c_opt.zero_grad()
        c_loss = F.binary_cross_entropy_with_logits(critic(real), ones)
        c_loss = c_loss + F.binary_cross_entropy_with_logits(critic(fake.detach()), zeros)
        c_loss.backward()
        c_opt.step()

        g_opt.zero_grad()
        g_loss = F.binary_cross_entropy_with_logits(critic(fake), ones)
        g_loss.backward()
        g_opt.step()
    print(f"critic {c_loss.item():.4f} generator {g_loss.item():.4f}")


if __name__ == "__main__":
    main()
