"""dVAE: discrete codes with a Gumbel-softmax relaxation, annealed during training."""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def blobs(n, size, generator):
    """Images with three soft discs each."""
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    out = torch.zeros(n, 3, size, size)
    for c in range(3):
        cx, cy = torch.rand(2, n, 1, 1, generator=generator) * 1.6 - 0.8
        r = torch.rand(n, 1, 1, generator=generator) * 0.4 + 0.1
        out[:, c] = torch.sigmoid((r - ((xx - cx) ** 2 + (yy - cy) ** 2).sqrt()) * 20)
    return out


class ResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.net = nn.Sequential(nn.ReLU(), nn.Conv2d(c, c, 3, padding=1),
                                 nn.ReLU(), nn.Conv2d(c, c, 1))

    def forward(self, x):
        return x + self.net(x)


class DiscreteVAE(nn.Module):
    def __init__(self, codes=128, dim=48, hidden=48):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, hidden, 4, stride=2, padding=1), ResBlock(hidden),
            nn.Conv2d(hidden, hidden, 4, stride=2, padding=1), ResBlock(hidden),
            nn.Conv2d(hidden, codes, 1))
        self.codebook = nn.Embedding(codes, dim)
        self.decoder = nn.Sequential(
            nn.Conv2d(dim, hidden, 3, padding=1), ResBlock(hidden),
            nn.ConvTranspose2d(hidden, hidden, 4, stride=2, padding=1), ResBlock(hidden),
            nn.ConvTranspose2d(hidden, 3, 4, stride=2, padding=1))
        self.codes = codes

    def forward(self, img, noise, temperature, kl_weight):
        logits = self.encoder(img)
        soft = F.softmax((logits + noise) / temperature, dim=1)
        sampled = torch.einsum("bnhw,nd->bdhw", soft, self.codebook.weight)
        recon = self.decoder(sampled)
        rec = F.mse_loss(recon, img)
        logp = F.log_softmax(logits, dim=1)
        kl = (logp.exp() * (logp + math.log(self.codes))).sum(1).mean()
        return rec + kl_weight * kl, rec


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--size", type=int, default=32)
    ap.add_argument("--anneal-every", type=int, default=10)
    ap.add_argument("--temp-start", type=float, default=1.0)
    ap.add_argument("--temp-min", type=float, default=0.1)
    ap.add_argument("--anneal-rate", type=float, default=6e-3)
    ap.add_argument("--seed", type=int, default=42)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.accumulated_recompile_limit = 1024
    images = blobs(2048, args.size, gen)

    vae = DiscreteVAE()
    step_fn = torch.compile(vae, backend="aot_eager", dynamic=False)
    opt = torch.optim.Adam(vae.parameters(), lr=1e-3, fused=True)
    grid = args.size // 4

    temperature = args.temp_start
    start = time.time()
    for step in range(args.steps):
        idx = torch.randint(0, len(images), (args.batch,), generator=gen)
        u = torch.rand(args.batch, vae.codes, grid, grid, generator=gen).clamp_(1e-6, 1 - 1e-6)
        noise = -torch.log(-torch.log(u))
        loss, rec = step_fn(images[idx], noise, torch.tensor(temperature), 1e-4)
        opt.zero_grad()
        loss.backward()
        opt.step()

        if step % args.anneal_every == 0:
            temperature = max(args.temp_start * math.exp(-args.anneal_rate * step), args.temp_min)
        if step % 20 == 0:
            print(f"{step:4d}  loss {loss.item():.5f}  rec {rec.item():.5f}  "
                  f"temp {temperature:.3f}  {time.time() - start:.1f}s", flush=True)


if __name__ == "__main__":
    main()
