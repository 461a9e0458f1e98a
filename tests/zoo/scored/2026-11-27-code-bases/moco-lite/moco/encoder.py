import copy

import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride, bias=False) if stride != 1 or cin != cout else nn.Identity()

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.skip(x))


class Encoder(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        w = width
        self.stem = nn.Sequential(nn.Conv2d(3, w, 3, 2, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU())
        self.body = nn.Sequential(Block(w, w, 1), Block(w, 2 * w, 2), Block(2 * w, 4 * w, 2))
        self.head = nn.Sequential(nn.Linear(4 * w, 4 * w), nn.ReLU(), nn.Linear(4 * w, dim))

    def forward(self, x):
        h = self.body(self.stem(x)).mean((2, 3))
        return F.normalize(self.head(h), dim=1)


class MomentumPair(nn.Module):
    def __init__(self, width, dim, momentum):
        super().__init__()
        self.query = Encoder(width, dim)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.momentum = momentum

    @torch.no_grad()
    def update_key(self):
        torch._foreach_lerp_(list(self.key.parameters()), list(self.query.parameters()), 1 - self.momentum)

    def forward(self, a, b):
        q = self.query(a)
        with torch.no_grad():
            k = self.key(b)
        return q, k
