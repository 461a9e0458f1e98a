import torch
from torch import nn


class ConvBlock(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(
            nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, cin, classes, base, depth):
        super().__init__()
        widths = [base * 2 ** i for i in range(depth)]
        self.down = nn.ModuleList()
        for w in widths:
            self.down.append(ConvBlock(cin, w))
            cin = w
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList()
        self.merge = nn.ModuleList()
        for hi, lo in zip(widths[::-1][:-1], widths[::-1][1:]):
            self.up.append(nn.ConvTranspose2d(hi, lo, 2, stride=2))
            self.merge.append(ConvBlock(2 * lo, lo))
        self.head = nn.Conv2d(base, classes, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else self.pool(x))
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)
