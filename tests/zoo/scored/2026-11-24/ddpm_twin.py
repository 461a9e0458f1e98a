"""Unconditional DDPM on 16x16 synthetic shapes."""
import copy
import math
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class DDPMConfig:
    steps: int = 240
    batch: int = 8
    size: int = 16
    width: int = 48
    timesteps: int = 200
    lr: float = 2e-4
    ema: float = 0.995
    seed: int = 5


def shapes(n, size, gen):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    c = torch.rand(n, 2, 1, 1, generator=gen) * size * 0.5 + size * 0.25
    r = torch.rand(n, 1, 1, generator=gen) * size * 0.15 + size * 0.12
    disc = ((xx - c[:, 0]) ** 2 + (yy - c[:, 1]) ** 2).sqrt() < r
    box = torch.maximum((xx - c[:, 0]).abs(), (yy - c[:, 1]).abs()) < r
    pick = torch.rand(n, 1, 1, generator=gen) < 0.5
    return (torch.where(pick, disc, box).float() * 2 - 1)[:, None]


def time_embedding(t, dim):
    freqs = torch.exp(-math.log(10000) * torch.arange(dim // 2) / (dim // 2))
    a = t[:, None].float() * freqs[None]
    return torch.cat([a.sin(), a.cos()], 1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, temb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.t = nn.Linear(temb, cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, temb):
        h = self.conv1(F.silu(self.norm1(x))) + self.t(temb)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, w, temb=128):
        super().__init__()
        self.w = w
        self.mlp = nn.Sequential(nn.Linear(w, temb), nn.SiLU(), nn.Linear(temb, temb), nn.SiLU())
        self.inp = nn.Conv2d(1, w, 3, padding=1)
        self.d1 = ResBlock(w, w, temb)
        self.down1 = nn.Conv2d(w, 2 * w, 3, 2, 1)
        self.d2 = ResBlock(2 * w, 2 * w, temb)
        self.down2 = nn.Conv2d(2 * w, 4 * w, 3, 2, 1)
        self.m1, self.m2 = ResBlock(4 * w, 4 * w, temb), ResBlock(4 * w, 4 * w, temb)
        self.m3, self.m4 = ResBlock(4 * w, 4 * w, temb), ResBlock(4 * w, 4 * w, temb)
        self.u2 = ResBlock(6 * w, 2 * w, temb)
        self.u1 = ResBlock(3 * w, w, temb)
        self.out = nn.Sequential(nn.GroupNorm(8, w), nn.SiLU(), nn.Conv2d(w, 1, 3, padding=1))

    def forward(self, x, t):
        e = self.mlp(time_embedding(t, self.w))
        h1 = self.d1(self.inp(x), e)
        h2 = self.d2(self.down1(h1), e)
        h = self.down2(h2)
        for blk in (self.m1, self.m2, self.m3, self.m4):
            h = blk(h, e)
        h = self.u2(torch.cat([F.interpolate(h, scale_factor=2), h2], 1), e)
        h = self.u1(torch.cat([F.interpolate(h, scale_factor=2), h1], 1), e)
        return self.out(h)


class Diffusion:
    def __init__(self, cfg):
        self.cfg = cfg
        beta = torch.linspace(1e-4, 0.03, cfg.timesteps)
        self.abar = torch.cumprod(1 - beta, 0)

    def loss(self, model, x0, gen):
        t = torch.randint(self.cfg.timesteps, (x0.shape[0],), generator=gen)
        eps = torch.randn(x0.shape, generator=gen)
        a = self.abar[t][:, None, None, None]
        return F.mse_loss(model(a.sqrt() * x0 + (1 - a).sqrt() * eps, t), eps)


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.averaged = list(self.model.parameters())
        self.params = list(model.parameters())

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.averaged, self.params, 1 - self.decay)


def main():
    cfg = DDPMConfig()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    data = shapes(2048, cfg.size, gen)
    model = UNet(cfg.width)
    ema = EMA(model, cfg.ema)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, fused=True)
    diffusion = Diffusion(cfg)
    print(f"unet with {sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters")
    tic = time.time()
    for it in range(1, cfg.steps + 1):
        x0 = data[torch.randint(len(data), (cfg.batch,), generator=gen)]
        loss = diffusion.loss(model, x0, gen)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        ema.update()
        if it % 40 == 0:
            print(f"[{it}/{cfg.steps}] loss {loss.item():.4f} {(time.time() - tic) / it * 1e3:.0f} ms/it", flush=True)
    with torch.no_grad():
        print(f"ema loss {diffusion.loss(ema.model, data[:64], gen).item():.4f}")


if __name__ == "__main__":
    main()
