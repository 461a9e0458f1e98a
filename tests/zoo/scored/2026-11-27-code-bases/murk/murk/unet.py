import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def timestep_features(t, dim):
    freq = torch.exp(-math.log(10_000) * torch.arange(dim // 2) / (dim // 2))
    angle = t[:, None].float() * freq
    return torch.cat([angle.cos(), angle.sin()], 1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, time_dim):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.time = nn.Linear(time_dim, 2 * cout)
        self.norm2, self.conv2 = nn.GroupNorm(8, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(emb)[:, :, None, None].chunk(2, 1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(h))


class Attention(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.norm, self.qkv, self.out = nn.GroupNorm(8, c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)
        self.heads = heads

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        ch = [cfg.base * m for m in cfg.mults]
        self.dim = cfg.base * 2
        self.embed = nn.Sequential(nn.Linear(self.dim, cfg.time_dim), nn.SiLU(), nn.Linear(cfg.time_dim, cfg.time_dim))
        self.label = nn.Embedding(cfg.classes + 1, cfg.time_dim)
        self.stem = nn.Conv2d(3, ch[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        cur = ch[0]
        for c in ch:
            self.down.append(nn.ModuleList([ResBlock(cur, c, cfg.time_dim), ResBlock(c, c, cfg.time_dim)]))
            cur = c
        self.mid = nn.ModuleList([ResBlock(cur, cur, cfg.time_dim), ResBlock(cur, cur, cfg.time_dim)])
        self.attn = Attention(cur)
        for c in reversed(ch):
            self.up.append(nn.ModuleList([ResBlock(cur + c, c, cfg.time_dim), ResBlock(c, c, cfg.time_dim)]))
            cur = c
        self.head = nn.Sequential(nn.GroupNorm(8, cur), nn.SiLU(), nn.Conv2d(cur, 3, 3, padding=1))

    def forward(self, x, t, y):
        emb = F.silu(self.embed(timestep_features(t, self.dim)) + self.label(y))
        h, kept = self.stem(x), []
        for i, (a, b) in enumerate(self.down):
            h = b(a(h, emb), emb)
            kept.append(h)
            if i + 1 < len(self.down):
                h = F.avg_pool2d(h, 2)
        h = self.mid[1](self.attn(self.mid[0](h, emb)), emb)
        for i, (a, b) in enumerate(self.up):
            h = b(a(torch.cat([h, kept.pop()], 1), emb), emb)
            if i + 1 < len(self.up):
                h = F.interpolate(h, scale_factor=2.0, mode="nearest")
        return self.head(h)
