import torch
import torch.nn.functional as F
from torch import nn

from .spectral import SpectralConv2d

OPERATORS = {}


def operator(name):
    def deco(cls):
        OPERATORS[name] = cls
        return cls
    return deco


@operator("fno2d")
class FNO2d(nn.Module):
    def __init__(self, s):
        super().__init__()
        line = torch.linspace(0, 1, s.resolution + 1)[:-1]
        gx, gy = torch.meshgrid(line, line, indexing="ij")
        self.register_buffer("grid", torch.stack([gx, gy])[None])
        self.lift = nn.Conv2d(3, s.width, 1)
        self.spectral = nn.ModuleList(SpectralConv2d(s.width, s.width, s.modes) for _ in range(s.layers))
        self.local = nn.ModuleList(nn.Conv2d(s.width, s.width, 1) for _ in range(s.layers))
        self.project = nn.Sequential(nn.Conv2d(s.width, 64, 1), nn.GELU(), nn.Conv2d(64, 1, 1))

    def forward(self, f):
        x = self.lift(torch.cat([f, self.grid.expand(len(f), -1, -1, -1)], 1))
        for k, (spec, loc) in enumerate(zip(self.spectral, self.local)):
            x = spec(x) + loc(x)
            if k + 1 < len(self.spectral):
                x = F.gelu(x)
        return self.project(x)


@operator("convnet")
class PlainConv(nn.Sequential):
    def __init__(self, s):
        super().__init__(nn.Conv2d(1, s.width, 7, padding=3, padding_mode="circular"), nn.GELU(),
                         nn.Conv2d(s.width, s.width, 7, padding=3, padding_mode="circular"), nn.GELU(),
                         nn.Conv2d(s.width, 1, 1))
