import math

import torch


class WindowBank:
    """Windows of every device: its own resonances plus common motion."""

    def __init__(self, a):
        g = torch.Generator().manual_seed(a.seed)
        t = torch.arange(a.length) / a.length
        freq = 2 + 20 * torch.rand(a.devices, 1, a.channels, 1, generator=g)
        gain = 0.3 + torch.rand(a.devices, 1, a.channels, 1, generator=g)
        phase = 2 * math.pi * torch.rand(a.devices, a.windows_per_device, a.channels, 1, generator=g)
        x = gain * torch.sin(2 * math.pi * freq * t + phase)
        self.x = x + 0.4 * torch.randn(x.shape, generator=g)
        self.g, self.a = g, a

    def draw(self):
        a = self.a
        dev = torch.randperm(a.devices, generator=self.g)[:a.classes_per_batch]
        win = torch.rand(a.classes_per_batch, a.windows_per_device, generator=self.g).argsort(1)[:, :a.per_class]
        x = self.x[dev[:, None], win]
        return x.flatten(0, 1), dev.repeat_interleave(a.per_class)
