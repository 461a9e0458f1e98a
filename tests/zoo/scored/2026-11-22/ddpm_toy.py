"""Denoising diffusion on synthetic 1-d signals, EMA weights for sampling."""
import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def signals(n, length, g):
    t = torch.linspace(0, 1, length)
    freq = torch.randint(1, 6, (n, 1), generator=g).float()
    phase = torch.rand(n, 1, generator=g) * 6.28
    amp = torch.rand(n, 1, generator=g) * 0.5 + 0.5
    return (amp * torch.sin(6.28 * freq * t + phase)).unsqueeze(1)


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], dim=-1)


class MixBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.time = nn.Linear(dim, 2 * dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x, emb):
        scale, shift = self.time(emb).chunk(2, dim=-1)
        h = self.norm(x) * (1 + scale) + shift
        return x + self.fc2(F.silu(self.fc1(h)))


class Denoiser(nn.Module):
    def __init__(self, length, dim=192, depth=12):
        super().__init__()
        self.inp = nn.Linear(length, dim)
        self.dim = dim
        self.time_mlp = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList([MixBlock(dim) for _ in range(depth)])
        self.out = nn.Linear(dim, length)

    def forward(self, x, t):
        emb = self.time_mlp(timestep_embedding(t, self.dim))
        h = self.inp(x.squeeze(1))
        for block in self.blocks:
            h = block(h, emb)
        return self.out(h).unsqueeze(1)


class Diffusion:
    def __init__(self, steps=200):
        beta = torch.linspace(1e-4, 0.03, steps)
        self.alpha_bar = torch.cumprod(1 - beta, dim=0)
        self.beta, self.steps = beta, steps

    def loss(self, model, x0):
        t = torch.randint(0, self.steps, (len(x0),))
        noise = torch.randn_like(x0)
        ab = self.alpha_bar[t][:, None, None]
        xt = ab.sqrt() * x0 + (1 - ab).sqrt() * noise
        return F.mse_loss(model(xt, t), noise)

    @torch.no_grad()
    def sample(self, model, shape):
        x = torch.randn(shape)
        for i in reversed(range(self.steps)):
            t = torch.full((shape[0],), i)
            eps = model(x, t)
            a, ab = 1 - self.beta[i], self.alpha_bar[i]
            x = (x - self.beta[i] / (1 - ab).sqrt() * eps) / a.sqrt()
            if i:
                x = x + self.beta[i].sqrt() * torch.randn_like(x)
        return x


def clip_gradients(model, max_norm):
    total = 0.0
    for p in model.parameters():
        if p.grad is not None:
            total += (p.grad.detach().clone() ** 2).sum().item()
    total = total ** 0.5
    coef = max_norm / (total + 1e-6)
    for p in model.parameters():
        if p.grad is not None:
            p.grad = p.grad * min(coef, 1.0)
    return total


@torch.no_grad()
def update_ema(ema, model, decay):
    source = model.state_dict()
    target = ema.state_dict()
    for name in target:
        averaged = decay * target[name] + (1 - decay) * source[name]
        target[name].copy_(averaged)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=320)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--length", type=int, default=64)
    p.add_argument("--lr", type=float, default=5e-4)
    p.add_argument("--ema-decay", type=float, default=0.99)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=17)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    data = signals(8192, args.length, g)
    model = Denoiser(args.length)
    ema = copy.deepcopy(model).requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    diffusion = Diffusion()
    smooth = None
    for it in range(args.iters):
        batch = data[torch.randint(0, len(data), (args.batch,), generator=g)]
        loss = diffusion.loss(model, batch)
        opt.zero_grad()
        loss.backward()
        norm = clip_gradients(model, args.clip)
        opt.step()
        update_ema(ema, model, args.ema_decay)
        smooth = loss.item() if smooth is None else 0.97 * smooth + 0.03 * loss.item()
        if it % 40 == 0:
            print(f"it {it} loss {smooth:.4f} grad {float(norm):.3f}", flush=True)
    out = diffusion.sample(ema, (4, 1, args.length))
    print(f"sample std {out.std().item():.3f}")


if __name__ == "__main__":
    main()
