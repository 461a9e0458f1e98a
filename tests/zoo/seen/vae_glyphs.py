"""Variational autoencoder on 20x20 glyph bitmaps."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self, n=400, h=96, z=12):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(n, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.mu, self.logvar = nn.Linear(h, z), nn.Linear(h, z)
        self.dec = nn.Sequential(nn.Linear(z, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, n))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


def elbo(logits, x, mu, logvar):
    rec = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum()
    return (rec + kl) / len(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=160)
    args = ap.parse_args()
    torch.manual_seed(90)
    proto = torch.rand(26, 400).gt(0.7).float()
    which = torch.randint(0, 26, (12_000,))
    flip = torch.rand(12_000, 400) < 0.05
    glyphs = (proto[which] - flip.float()).abs()
    model = VAE()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for step in range(args.steps):
        x = glyphs[torch.randint(0, len(glyphs), (1024,))]
        loss = elbo(*(lambda o: (o[0], x, o[1], o[2]))(model(x)))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 80 == 0:
            print(step, round(loss.item(), 2))


if __name__ == "__main__":
    main()
