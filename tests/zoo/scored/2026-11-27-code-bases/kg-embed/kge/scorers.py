import torch
from torch import nn
import torch.nn.functional as F

from .registry import SCORERS


@SCORERS.add("conve")
class ConvE(nn.Module):
    """Head and relation are put on a grid, convolved and projected back to the entity space."""

    def __init__(self, dim, channels=32):
        super().__init__()
        self.h = 8
        self.w = dim // 8
        self.conv = nn.Conv2d(1, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels * 2 * dim, dim)
        self.out = nn.LayerNorm(dim)

    def forward(self, head, rel):
        x = torch.stack([head.view(-1, self.h, self.w), rel.view(-1, self.h, self.w)], 1)
        x = x.flatten(1, 2).unsqueeze(1)
        x = F.relu(self.norm(self.conv(x)))
        x = F.relu(self.conv2(x))
        return self.out(self.fc(x.flatten(1)))


@SCORERS.add("distmult")
class DistMult(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, head, rel):
        return head * rel * self.scale
