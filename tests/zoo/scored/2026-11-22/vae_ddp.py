"""Convolutional VAE trained by two processes with DDP (gloo)."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def rings(n, size, seed):
    g = torch.Generator().manual_seed(seed)
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    cx, cy = torch.rand(2, n, 1, 1, generator=g) - 0.5
    r = torch.rand(n, 1, 1, generator=g) * 0.5 + 0.2
    d = ((xx - cx) ** 2 + (yy - cy) ** 2).sqrt()
    return torch.exp(-((d - r) * 10) ** 2).unsqueeze(1)


class VAE(nn.Module):
    def __init__(self, width, latent):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(width, 2 * width, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.SiLU(), nn.Flatten(),
            nn.Linear(4 * width * 16, 2 * latent))
        self.fc = nn.Linear(latent, 4 * width * 16)
        self.dec = nn.Sequential(
            nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.SiLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.SiLU(),
            nn.ConvTranspose2d(width, 1, 4, 2, 1))
        self.width = width

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        recon = self.dec(self.fc(z).view(-1, 4 * self.width, 4, 4))
        rec = F.binary_cross_entropy_with_logits(recon, x, reduction="sum") / len(x)
        kl = 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum() / len(x)
        return rec, kl


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--width", type=int, default=32)
    p.add_argument("--latent", type=int, default=16)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=19)
    args = p.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    images = rings(4096, 32, args.seed)[rank::world]
    model = DDP(VAE(args.width, args.latent), gradient_as_bucket_view=True)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    torch.manual_seed(args.seed + 1 + rank)
    t0 = time.time()
    for step in range(args.steps):
        rows = torch.randint(0, len(images), (args.batch,))
        rec, kl = model(images[rows])
        beta = min(1.0, step / 100)
        loss = rec + beta * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 25 == 0:
            print(f"step {step} rec {rec.item():.2f} kl {kl.item():.2f} {time.time() - t0:.1f}s",
                  flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
