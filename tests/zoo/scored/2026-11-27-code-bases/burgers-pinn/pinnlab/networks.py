import math

import torch
from torch import nn


class FourierEmbedding(nn.Module):
    def __init__(self, dim_in, bands, scale=1.5):
        super().__init__()
        self.register_buffer("freq", torch.randn(dim_in, bands) * scale)

    def forward(self, z):
        proj = math.pi * z @ self.freq
        return torch.cat([z, proj.sin(), proj.cos()], dim=-1)


class FieldNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = FourierEmbedding(2, cfg.fourier_bands)
        widths = [2 + 2 * cfg.fourier_bands] + [cfg.hidden] * cfg.depth
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:]))
        self.out = nn.Linear(cfg.hidden, 1)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.xavier_normal_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, z):
        h = self.embed(z)
        for layer in self.hidden:
            h = torch.tanh(layer(h))
        return self.out(h)
