import torch
import torch.nn as nn
import torch.nn.functional as F


class GatedLevel(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(channels, 2 * channels, 3, dilation=dilation)
        self.mix = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        a, b = self.conv(F.pad(x, (self.pad, 0))).chunk(2, 1)
        return x + self.mix(torch.tanh(a) * torch.sigmoid(b))


class GatedTCN(nn.Module):
    def __init__(self, c, horizon, window):
        super().__init__()
        self.inp = nn.Conv1d(1, c.channels, 1)
        self.levels = nn.Sequential(*[GatedLevel(c.channels, 2 ** i) for i in range(c.levels)])
        self.neck = nn.Linear(c.channels * 24, 2048)
        self.out = nn.Linear(2048, horizon)

    def forward(self, x):
        h = self.levels(self.inp(x))[:, :, -24:]
        return self.out(F.gelu(self.neck(h.flatten(1))))


KINDS = {"gated_tcn": GatedTCN}


def build(cfg):
    return KINDS[cfg.net.kind](cfg.net, cfg.data.horizon, cfg.data.window)
