import math

import torch


class CosineSchedule:
    def __init__(self, steps):
        t = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
        bar = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
        bar = (bar / bar[0])[1:].clamp(1e-5, 0.9999)
        self.signal = bar.sqrt().float()
        self.noise = (1 - bar).sqrt().float()
        self.steps = steps

    def diffuse(self, x, t, eps):
        return self.signal[t][:, None, None, None] * x + self.noise[t][:, None, None, None] * eps

    def velocity(self, x, t, eps):
        return self.signal[t][:, None, None, None] * eps - self.noise[t][:, None, None, None] * x
