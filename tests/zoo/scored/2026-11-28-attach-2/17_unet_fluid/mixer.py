import torch
from torch import nn
import torch.nn.functional as F


class Swirl(nn.Module):
    """Mixes each channel with shifted copies of itself; every block has its own set of shifts."""

    def __init__(self, c, n):
        super().__init__()
        self.shifts = [1 + (n * 5 + 3 * i) % 11 for i in range(3 + n % 4)]
        self.gain = nn.Parameter(torch.randn(len(self.shifts), c, 1, 1) * 0.1)
        self.norm = nn.GroupNorm(1 + n % 2, c)

    def forward(self, x):
        out = x
        for g, s in zip(self.gain, self.shifts):
            out = out + g * torch.sin(x.roll(s, -1) * torch.cos(x.roll(-s, -2)))
            out = out + F.softmax(out.flatten(2), -1).view_as(out) * torch.sigmoid(g)
        return self.norm(torch.tanh(out) + x)


class Block(nn.Module):
    def __init__(self, c, n):
        super().__init__()
        self.swirl = Swirl(c, n)
        self.width = c + 2 * (n % 9)
        self.a = nn.Conv2d(c, self.width, 1)
        self.b = nn.Conv2d(self.width, c, 1)
        self.kind = n % 5

    def act(self, h):
        if self.kind == 0:
            return F.gelu(h) * torch.log1p(h * h)
        if self.kind == 1:
            return F.silu(h) + h.std(dim=1, keepdim=True)
        if self.kind == 2:
            return F.elu(h) - h.amax(dim=(2, 3), keepdim=True)
        if self.kind == 3:
            return F.softplus(h) * torch.erf(h).mean(1, keepdim=True)
        return h * torch.rsqrt(h.pow(2).mean(dim=(1, 2), keepdim=True) + 1e-5)

    def forward(self, x):
        return x + self.b(self.act(self.a(self.swirl(x))))


class FlowMixer(nn.Module):
    def __init__(self, depth, c=12):
        super().__init__()
        self.stem = nn.Conv2d(2, c, 3, padding=1)
        self.blocks = nn.ModuleList([Block(c, n) for n in range(depth)])
        self.out = nn.Conv2d(c, 2, 3, padding=1)

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.out(h)
